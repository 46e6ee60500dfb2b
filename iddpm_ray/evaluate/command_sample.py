"""The command line of `jobs/sample.py`, and the job that it asks for."""

import argparse
from typing import TYPE_CHECKING, Any

from iddpm_ray import storage
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate.command import WEIGHTS, add_pool, add_weights, at_least, average, share, step, way

if TYPE_CHECKING:
    from iddpm_ray.evaluate.generate import Job

WAY = ("step", "method", "respacing", "eta", "ema", "guidance", "guidance_interval")


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of `jobs/sample.py`."""
    made = argparse.ArgumentParser(
        description=description, usage="%(prog)s RUN [options]", epilog="What is not said here is as the run's section `sample` has it."
    )
    add = made.add_argument
    add("run", metavar="RUN", help=WEIGHTS)
    add_weights(made)
    _add_way(made, "", "")
    add("--count", type=at_least(1), help="pictures (as many as base or label file have, else 100)")
    add("--seed", type=int, default=0, help="of everything random (0)")
    add("--batch", type=at_least(1), default=64, help="pictures drawn together; another number rounds otherwise (64)")
    add("--classes", help="3, or 1,2,7 in turn, or names, or balanced, or a file with a class a line (as the run says, else balanced)")
    add(
        "--base", metavar="NPZ|RUN", help="what a run of model.kind superres enlarges: an npz of small pictures, or the run that draws them"
    )
    add("--base-noise", type=at_least(0), metavar="LEVEL", help="noise given to those, at most model.low_res_noise")
    _add_way(made, "base-", "for the run given as --base: ")
    add("--precision", choices=("float32", "bf16", "fp16"), help="what the network computes in (as in training)")
    add("--compile", action="store_true", help="torch.compile the network")
    add("--out", metavar="URL", help="folder for the result (RUN/generated/ and a name of its own)")
    add("--format", choices=("npz", "png", "parquet"), default="npz", help="of the result (npz, as the original program's)")
    add("--grid", type=at_least(1), nargs="?", const=100, metavar="N", help="also a picture of the first N (100)")
    add("--keep-chunks", action="store_true", help="leave the pieces that the result was made of")
    add_pool(made)
    add("--dry-run", action="store_true", help="print what would be drawn; start nothing")
    return made


def job_of(wanted: argparse.Namespace) -> "Job":
    """The job that a command line asks for.

    Raises:
        SpecError: names the option that cannot be had.
        CheckpointError: there are no such weights.
    """
    from iddpm_ray.evaluate.classes import read_classes
    from iddpm_ray.evaluate.drawing import Arithmetic, Drawing, make_drawing
    from iddpm_ray.evaluate.generate import make_job
    from iddpm_ray.evaluate.trained import Source, find_source

    source = find_source(wanted.run, which=wanted.step or "newest", spec_url=wanted.spec)

    def arithmetic(source: Source) -> Arithmetic:  # each network as it would draw by itself
        optim, device = source.spec.optim, "cuda" if wanted.gpus_per_worker else "cpu"
        return Arithmetic(device, wanted.precision or optim.precision, optim.matmul_precision, compile=wanted.compile)

    drawing = make_drawing(
        source,
        arithmetic=arithmetic(source),
        **_given(wanted, ""),
        **({"low_res_noise": wanted.base_noise} if wanted.base_noise is not None else {}),
    )
    base: Drawing | str | None = None
    if wanted.base is not None and wanted.base.endswith(".npz") and not storage.is_dir(wanted.base):
        base = storage.absolute(wanted.base)
    elif wanted.base is not None:
        below = find_source(wanted.base, which=wanted.base_step or "newest")
        base = make_drawing(below, arithmetic=arithmetic(below), **_given(wanted, "base_"))
    if not isinstance(base, Drawing) and (idle := [name for name in WAY if getattr(wanted, f"base_{name}") is not None]):
        raise SpecError(f"--base-{idle[0].replace('_', '-')}", fix="says how the run given as --base draws, and there is none")
    labels = None
    if wanted.classes is not None:
        known = [one for one in (source, base.source if isinstance(base, Drawing) else None) if one is not None and one.num_classes]
        if not known:
            raise SpecError("--classes", value=wanted.classes, fix="the network was trained without classes")
        labels = read_classes(wanted.classes, num_classes=known[0].num_classes or 0, classes=known[0].classes)
    return make_job(drawing, seed=wanted.seed, count=wanted.count, batch=wanted.batch, labels=labels, base=base, threads=wanted.threads)


def _given(wanted: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """The fields of section `sample` that the command line sets."""
    said = {name: getattr(wanted, prefix + name) for name in WAY if name != "step" and getattr(wanted, prefix + name) is not None}
    if "ema" in said:
        said["ema"] = None if said["ema"] == "raw" else float(said["ema"])
    return way(said, prefix=prefix.replace("_", "-"))


def _add_way(parser: argparse.ArgumentParser, prefix: str, about: str) -> None:
    add = parser.add_argument
    if prefix:
        add(f"--{prefix}step", type=step, metavar="N|newest|best", help=f"{about}which checkpoint (newest)")
        add(f"--{prefix}ema", type=average, metavar="RATE|raw", help=f"{about}which average of the weights")
    add(f"--{prefix}method", choices=("ddpm", "ddim", "dpmpp"), help=f"{about}ancestral, DDIM, or DPM-Solver++ 2M")
    add(f"--{prefix}respacing", help=f'{about}draw in fewer timesteps: "250", "10,15,20", "ddim50"')
    add(f"--{prefix}eta", type=share, help=f"{about}of DDIM, 0 to 1")
    add(f"--{prefix}guidance", type=share, metavar="SCALE", help=f"{about}classifier-free guidance, 1 for none")
    add(f"--{prefix}guidance-interval", type=_interval, metavar="LO,HI", help=f"{about}guide at these timesteps of the whole process alone")


def _interval(text: str) -> tuple[int, int]:
    low, _, high = text.partition(",")
    if not (low.isdecimal() and high.isdecimal()):
        raise argparse.ArgumentTypeError(f"should be two timesteps, such as 100,800 (got {text})")
    return int(low), int(high)
