"""The command line of `jobs/evaluate.py`: what is to be judged, and how."""

import argparse
from typing import TYPE_CHECKING, Any

from iddpm_ray import storage
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate.command import add_pool, add_weights, at_least, share, way

if TYPE_CHECKING:
    from iddpm_ray.evaluate.assessment import Assessment
    from iddpm_ray.evaluate.features import FeatureFile
    from iddpm_ray.evaluate.subject import Subject
    from iddpm_ray.spec.evaluate import EvaluateSpec

WAY = ("method", "respacing", "eta", "guidance")


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of `jobs/evaluate.py`."""
    made = argparse.ArgumentParser(
        description=description,
        usage="%(prog)s RUN|NPZ|FOLDER [options]",
        epilog="What is not said here is as the run's sections sample and evaluate have it.",
    )
    add = made.add_argument
    add("samples", metavar="RUN|NPZ|FOLDER", help="a run (or checkpoint, or file of weights) that draws, or pictures, at any fsspec URL")
    add("--reference", metavar="NPZ|FOLDER|data", help="statistics or pictures to hold them against (of a run: its own training pictures)")
    add("--features", metavar="WHICH", help="inception, NAME-classifier to train a small one on the labels, or a file of such a one")
    add("--inception", metavar="FILE", help="weights of the Inception network, at any fsspec URL; nothing is downloaded by itself")
    add("--inception-sha256", metavar="HEX", help="its checksum")
    add("--write-reference", metavar="NPZ", help="also write the reference's mu, sigma, mu_s, sigma_s, as ADM's evaluator reads them")
    add("--score", action="store_true", help="let --step best and checkpoint.keep_best count this result")
    add_weights(made)
    add("--count", type=at_least(1), help="samples a run draws")
    add("--method", choices=("ddpm", "ddim", "dpmpp"), help="how they are drawn")
    add("--respacing", help='draw in fewer timesteps: "250", "10,15,20", "ddim50"')
    add("--eta", type=share, help="of DDIM, 0 to 1")
    add("--guidance", type=share, metavar="SCALE", help="classifier-free guidance, 1 for none")
    add("--seed", type=int, default=0, help="of samples, subsets and the bootstrap (0)")
    add("--batch", type=at_least(1), help="samples drawn together")
    add("--out", metavar="FOLDER", help="where features and result go (RUN/evaluations/ and a name of its own; NPZ.evaluation)")
    add("--keep-chunks", action="store_true", help="leave the samples' features that the result was made of")
    add_pool(made)
    return made


def subject_of(wanted: argparse.Namespace) -> "Subject | None":
    """The run that is to be judged; None where the command line names pictures.

    Raises:
        CheckpointError: there are no such weights.
    """
    from iddpm_ray.evaluate.subject import choose_subject

    if _is_pictures(wanted.samples):
        return None
    return choose_subject(wanted.samples, which=wanted.step or "newest", ema=wanted.ema, spec_url=wanted.spec)


def assessment_of(wanted: argparse.Namespace, subject: "Subject | None") -> "Assessment":
    """What is to be measured, of the subject or, without one, of the pictures that the command line names.

    Raises:
        SpecError: names the option that cannot be had.
    """
    return _of_files(wanted) if subject is None else _of_run(wanted, subject)


def _is_pictures(samples: str) -> bool:
    """Whether the word names pictures rather than a run: an npz, or a folder that holds neither checkpoints nor a spec."""
    from iddpm_ray.evaluate.trained import is_weights

    if samples.endswith(".npz") and not storage.is_dir(samples):
        return True
    return bool(storage.is_dir(samples) and storage.list_dir(samples) and not is_weights(samples))


def _of_run(wanted: argparse.Namespace, subject: "Subject") -> "Assessment":
    from dataclasses import replace

    from iddpm_ray.evaluate.assessed_run import FOLDER, assessment_of_run
    from iddpm_ray.evaluate.drawing import Arithmetic, make_drawing
    from iddpm_ray.evaluate.features import ClassifierFile

    gpu = wanted.gpus_per_worker > 0
    said = way({name: getattr(wanted, name) for name in WAY if getattr(wanted, name) is not None})
    optim = subject.spec.optim
    arithmetic = Arithmetic("cuda" if gpu else "cpu", precision=optim.precision, matmul_precision=optim.matmul_precision)
    drawing = make_drawing(subject.source, arithmetic=arithmetic, ema=subject.ema, **said)
    section = _section(wanted, subject.spec.evaluate)
    _check_features(wanted, wanted.features or section.features)
    storage.check_writable(storage.absolute(wanted.out or storage.join(subject.run_url, FOLDER)), field="--out")
    file = ClassifierFile(storage.absolute(wanted.features)) if (wanted.features or "").endswith(".npz") else None
    one = assessment_of_run(drawing, run_url=subject.run_url, wanted=section, features=file, seed=wanted.seed, features_gpu=gpu)
    return one if wanted.out is None else replace(one, folder=storage.absolute(wanted.out))


def _of_files(wanted: argparse.Namespace) -> "Assessment":
    from iddpm_ray.evaluate.assessed_files import assessment_of_files, features_of_files

    if wanted.reference in (None, "data"):
        raise SpecError("--reference", value=wanted.reference, fix="say what the pictures are held against: an npz or a folder")
    idle = [name for name in (*WAY, "step", "ema", "spec", "count", "batch") if getattr(wanted, name) is not None]
    if idle or wanted.score:
        raise SpecError(f"--{(idle or ['score'])[0]}", fix="is for runs that draw samples; these are drawn already")
    _check_features(wanted, wanted.features or "inception")
    out = storage.absolute(wanted.out or f"{wanted.samples.rstrip('/').removesuffix('.npz')}.evaluation")
    storage.check_writable(out, field="--out")
    features: FeatureFile = features_of_files(
        wanted.features or "inception", inception=wanted.inception, sha256=wanted.inception_sha256, folder=out, reference=wanted.reference
    )
    gpu = wanted.gpus_per_worker > 0
    return assessment_of_files(wanted.samples, wanted.reference, features=features, folder=out, seed=wanted.seed, gpu=gpu)


def _section(wanted: argparse.Namespace, section: "EvaluateSpec") -> "EvaluateSpec":
    """Section `evaluate` of a run with what the command line says otherwise."""
    from pydantic import ValidationError

    from iddpm_ray.spec.evaluate import EvaluateSpec
    from iddpm_ray.spec.problems import from_validation

    names = ("count", "batch", "features", "inception", "inception_sha256", "reference")
    said: dict[str, Any] = {name: getattr(wanted, name) for name in names if getattr(wanted, name) is not None}
    if str(said.get("features")).endswith(".npz"):
        del said["features"]  # a file, not one of the section's words
    values = {**dict(section), **said, "threads": wanted.threads}
    try:
        return EvaluateSpec.model_validate(values)
    except ValidationError as error:
        first = from_validation(error, given=values, model=EvaluateSpec)[0]
        fix = first.fix.removesuffix(" or null")  # a command line has no word for it
        raise SpecError(f"--{first.path.replace('_', '-')}", value=said.get(first.path), fix=fix) from None


def _check_features(wanted: argparse.Namespace, features: str) -> None:
    """Refuses weights of Inception where pictures are compared by something else."""
    for option, value in (("--inception", wanted.inception), ("--inception-sha256", wanted.inception_sha256)):
        if value is not None and features != "inception":
            raise SpecError(option, value=value, fix=f"has no effect where pictures are compared by {storage.shown(features)}")
