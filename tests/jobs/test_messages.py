"""What the programs after training refuse is said in one line that names the thing and what would do, as docs/evaluation.md lists them."""

import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluate.drawn_runs import LARGE, SUPERRES, trained

from iddpm_ray.evaluate.trained import find_source, open_trained
from iddpm_ray.spec.text import dump_yaml

ROOT = Path(__file__).parents[2]
JUDGE = ["--features", "digits-classifier", "--count", "16"]
TAKEN = ["--count", "2", "--respacing", "2", "--out", "taken"]
WEIGHTS = ["--spec", "spec.yaml", "--count", "2"]
CASES = {
    "a run without a checkpoint": [["sample", "none"], ["nll", "none"], ["evaluate", "none"], ["convert", "export", "none", "x.pt"]],
    "a step without a checkpoint": [
        ["sample", "digits", "--step", "3"],
        ["nll", "digits", "--step", "3"],
        ["evaluate", "digits", "--step", "3"],
        ["convert", "export", "digits", "x.pt", "--step", "3"],
    ],
    "a step that the run has not": [["replay", "digits", "step=99"]],
    "guidance of a network without label dropout": [["sample", "digits", "--guidance", "2"], ["evaluate", "digits", "--guidance", "2"]],
    "a class out of range": [["sample", "digits", "--classes", "10"]],
    "an unknown name of a class": [["sample", "digits", "--classes", "three"]],
    "a respacing longer than the process": [["sample", "digits", "--respacing", "21"], ["evaluate", "digits", "--respacing", "21"]],
    "base pictures of another size": [["sample", "enlarging", "--base", "large.npz"]],
    "an npz of another dtype": [
        ["sample", "enlarging", "--base", "float.npz"],
        ["evaluate", "float.npz", "--reference", "large.npz", "--features", "c.npz"],
        ["evaluate", "digits", *JUDGE, "--reference", "float.npz"],
    ],
    "an npz of Python objects": [
        ["sample", "enlarging", "--base", "object.npz"],
        ["evaluate", "object.npz", "--reference", "large.npz", "--features", "c.npz"],
        ["evaluate", "digits", *JUDGE, "--reference", "object.npz"],
    ],
    "statistics of other features": [["evaluate", "digits", *JUDGE, "--reference", "statistics.npz"]],
    "weights that would run code": [
        ["convert", "import", "code.pt", "x.safetensors"],
        ["sample", "code.pt", *WEIGHTS],
        ["nll", "code.pt", "--spec", "spec.yaml"],
        ["evaluate", "digits", "--inception", "code.pt", "--inception-sha256", "0" * 64],
    ],
    "weights that lack some": [["sample", "lacking.pt", *WEIGHTS]],
    "weights with others beside": [["sample", "more.pt", *WEIGHTS]],
    "a folder of the same job, asked for otherwise": [
        ["sample", "digits", "--count", "2", "--respacing", "2", "--seed", "1", "--out", "taken"]
    ],
    "a folder of a job of another kind": [
        ["nll", "digits", "--rows", "all", "--out", "taken"],
        ["evaluate", "digits", *JUDGE, "--out", "taken"],
    ],
    "a half-written folder that nobody describes": [["sample", "digits", "--count", "2", "--out", "half"]],
    "no Inception weights": [["evaluate", "digits"], ["evaluate", "large.npz", "--reference", "large.npz"]],
    "Inception weights that are not there": [["evaluate", "digits", "--inception", "none.pth", "--inception-sha256", "0" * 64]],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs and everything that is wrong."""
    root = tmp_path_factory.mktemp("messages")
    trained(root, "digits")
    trained(root, "enlarging", model=SUPERRES, data=LARGE)
    for name in ("digits", "enlarging"):
        (root / "runs" / name).rename(root / name)
    np.savez(root / "large.npz", arr_0=np.zeros((5, 9, 9, 1), dtype=np.uint8))
    np.savez(root / "float.npz", arr_0=np.zeros((5, 8, 8, 1), dtype=np.float32))
    np.savez(root / "object.npz", arr_0=np.array([{}, None], dtype=object))
    np.savez(root / "statistics.npz", mu=np.zeros(2048), sigma=np.eye(2048), mu_s=np.zeros(2023), sigma_s=np.eye(2023))
    source = find_source(str(root / "digits"))
    (root / "spec.yaml").write_text(dump_yaml(source.spec.with_num_classes(10)))
    weights = {name: tensor.detach() for name, tensor in open_trained(source, ema=None).network.named_parameters()}
    torch.save({**weights, "another": torch.zeros(2)}, root / "more.pt")
    torch.save({name: tensor for name, tensor in weights.items() if name != "out.2.weight"}, root / "lacking.pt")
    torch.save({"model": RunsCode()}, root / "code.pt")
    (root / "half" / "chunks").mkdir(parents=True)
    (root / "half" / "chunks" / "chunk-00000000.npz").write_bytes(b"half")
    return root


class RunsCode:
    """Pickled, it would make a file called `ran`."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        import os

        return os.system, ("touch ran",)


def table() -> dict[str, str]:
    """What the documentation says of each case."""
    text = (ROOT / "docs" / "evaluation.md").read_text().partition("## What is refused")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([^|]+) \| `(.+)` \|$", text, re.MULTILINE))


def test_the_table_lists_every_case() -> None:
    assert list(table()) == list(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_is_the_line_that_the_table_shows(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(place)
    if case.startswith("a folder of"):
        assert run("sample", ["digits", *TAKEN, "--workers", "0"]) == 0
    said = table()[case]
    for program, *words in CASES[case]:
        capfd.readouterr()
        here = [] if program in ("convert", "replay") else ["--workers", "0"]
        assert run(program, [*words, *here]) == 2, words
        error = capfd.readouterr().err
        assert error.startswith("error: "), error
        assert error.count("\n") == 1, error
        told = error.removeprefix("error: ").strip().replace(f"{place}/", "")
        wanted = ".+".join(re.escape(part) for part in said.split("..."))
        assert re.fullmatch(wanted, told), f"{told}\nis not\n{said}"
    assert not (place / "ran").exists()


def run(program: str, words: Sequence[str]) -> int:
    return runpy.run_path(str(ROOT / "jobs" / f"{program}.py"))["main"](words)
