"""The program: a run out to every format and back, flags to a spec, and one clear error for what cannot be done."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tiny
import torch
from convert.weights import GUIDED, equal, filled, save_pt, spec_of

from iddpm_ray.convert.model import Given
from iddpm_ray.convert.source import open_model
from iddpm_ray.spec.text import load_mapping, parse_yaml

PROGRAM = Path(__file__).parents[2] / "jobs" / "convert.py"
TOLD = [
    "data.image_size=8",
    "model.num_heads=1",
    "model.qkv_order=heads_first",
    "model.dropout=0",
    "diffusion.timesteps=30",
    "diffusion.schedule=linear",
    "diffusion.predicts=eps",
    "diffusion.variance=fixed_large",
    "diffusion.rescale_timesteps=false",
]


@pytest.fixture(name="program", scope="module")
def program_fixture() -> ModuleType:
    """The program as a module."""
    found = importlib.util.spec_from_file_location("convert_job", PROGRAM)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(name="run", scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with checkpoints of both, whose network is told plain timesteps, as diffusers tells them."""
    root = tmp_path_factory.mktemp("convert")
    tiny.write_pictures(root / "pictures")
    spec = tiny.tiny_spec(
        root, checkpoint__every="1 steps", checkpoint__keep_last=5, optim__lr=0.01, diffusion__rescale_timesteps=False, model__dropout=0.0
    )
    tiny.attempt(spec)
    return tiny.run_folder(spec)


def call(program: ModuleType, capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = program.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_run_goes_out_to_every_format_and_comes_back_bit_for_bit(
    program: ModuleType, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = open_model(str(run), given=Given({}), weights=0.9)
    for name, told in (("w.pt", TOLD), ("w.safetensors", []), ("folder", ["model.qkv_order=heads_first"])):
        code, out, err = call(program, capsys, "export", run, tmp_path / name, "--weights", "0.9")
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == f"from {run}/checkpoints/step-00000002.a0001, average 0.9"
        assert out.splitlines()[-1] == f"wrote {tmp_path / name}"
        code, out, err = call(program, capsys, "import", tmp_path / name, tmp_path / f"back-{name}.safetensors", *told)
        assert (code, err) == (0, "")
        back = open_model(str(tmp_path / f"back-{name}.safetensors"), given=Given({}))
        assert all(torch.equal(original.tensors[key], back.tensors[key]) for key in original.tensors)
        assert back.tensors.keys() == original.tensors.keys()


def test_flags_say_what_a_file_does_not_tell(program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = """
      --image_size 16 --channel_mult 1,2 --num_channels 32 --num_res_blocks 1 --num_head_channels 32 --resblock_updown True
      --attention_resolutions 8 --use_new_attention_order True --learn_sigma True"""
    model = filled(spec_of({**GUIDED, "model.channel_mult": [1, 2], "model.attention_resolutions": [8], "model.num_head_channels": 32}))
    save_pt(model, tmp_path / "w.pt")
    words = ["import", tmp_path / "w.pt", tmp_path / "w.safetensors", "--from", "guided", "--program", "image_sample", "--flags"]
    code, _, err = call(program, capsys, *words, flags)
    assert (code, err) == (0, "")
    back = open_model(str(tmp_path / "w.safetensors"), given=Given({}))
    assert equal(model, back)
    assert (back.spec.model.num_head_channels, back.spec.model.qkv_order, back.spec.diffusion.loss) == (32, "qkv_first", "mse")
    code, _, err = call(program, capsys, *words, flags.replace("--num_res_blocks 1", "--num_res_blocks 2"), "--overwrite")
    assert code == 2
    assert "model.num_res_blocks: the file has 1, --flags says 2" in err


def test_a_checkpoint_is_chosen_by_step_or_named_itself(
    program: ModuleType, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for which in ("1", "step-00000001.a0001"):
        code, out, _ = call(program, capsys, "export", run, tmp_path / f"{which}.pt", "--step", which)
        assert code == 0
        assert "step-00000001.a0001" in out.splitlines()[0]
    code, _, _ = call(program, capsys, "export", run / "checkpoints" / "step-00000001.a0001", tmp_path / "itself.pt")
    assert code == 0
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ("1.pt", "itself.pt"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_inspect_says_what_a_source_tells(program: ModuleType, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(program, capsys, "export", run, tmp_path / "w.pt")
    code, out, _ = call(program, capsys, "inspect", tmp_path / "w.pt")
    assert code == 0
    assert "levels      1, 32 channels wide, 1 residual blocks each" in out
    assert "sha256      " in out
    code, out, _ = call(program, capsys, "inspect", run)
    assert code == 0
    assert "timesteps: 30" in out


def test_flags_become_a_spec(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["flags", "--processes", 8, "run.name=a", "run.output_dir=runs", "data.path=p", "train.duration=2M samples"]
    code, out, err = call(program, capsys, *words, "--", "--image_size", 64, "--num_channels", 128, "--batch_size", 16)
    assert (code, err) == (0, "")
    spec = load_mapping(parse_yaml(out))
    assert (spec.train.global_batch, spec.model.num_channels, str(spec.train.duration)) == (128, 128, "2M samples")


@pytest.mark.parametrize("count", ["0", "-2", "many"])
def test_a_command_is_started_with_one_process_at_least(program: ModuleType, capsys: pytest.CaptureFixture[str], count: str) -> None:
    with pytest.raises(SystemExit):
        program.main(["flags", f"--processes={count}", "--", "--image_size", "64"])
    assert f"--processes: should be a whole number, at least 1 (got {count})" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--classes", "{tmp}/bad.json"], "{tmp}/bad.json is no JSON list of names"),
        (["--classes", "{tmp}/deep.json"], "{tmp}/deep.json is no JSON list of names"),
        (["--classes", "{tmp}/latin.txt"], "{tmp}/latin.txt is not text"),
        (["--classes", "{tmp}/none.txt"], "cannot read the classes in {tmp}/none.txt (it does not exist)"),
        (["--flags", "--data_dir 'x"], "--flags (got --data_dir 'x): no closing quotation"),
    ],
)
def test_what_goes_with_the_weights_and_cannot_be_read_is_named(
    program: ModuleType, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (tmp_path / "bad.json").write_text('["cat", ')
    (tmp_path / "deep.json").write_text('["cat", ["dog"]]')
    (tmp_path / "latin.txt").write_bytes("Käfer".encode("latin-1"))
    code, _, err = call(program, capsys, "import", run, tmp_path / "x.pt", *(word.format(tmp=tmp_path) for word in words))
    assert code == 2
    assert err.startswith(f"error: {message.format(tmp=tmp_path)}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["export", "{run}", "{tmp}/x.pt", "--step", "77"],
            "no checkpoint of that step (got 77): there are 2, 1, newest first",
        ),
        (["export", "{run}", "{tmp}/x.pt", "--weights", "0.5"], "the run keeps no such average of its weights (got 0.5)"),
        (["export", "{run}", "{tmp}/x.pt", "--weights", "best"], "--weights (got best): should be raw or a rate, such as 0.9999"),
        (["export", "{run}", "{tmp}/x.pt", "model.num_heads=2"], "knows what it is (got model.num_heads): leave this out"),
        (["export", "{tmp}", "{tmp}/x.pt"], "the run has no complete checkpoint (got {tmp})"),
        (["export", "{tmp}/none.pt", "{tmp}/x.pt"], "cannot read {tmp}/none.pt (it does not exist)"),
        (["export", "{run}", "/proc/x/y.pt"], "cannot write to /proc/x"),
        (["import", "{run}", "{tmp}/x.pt", "more"], "more is no section.key=value"),
        (["import", "{run}", "{tmp}/x.pt", "--preset", "digits", "--flags", "x"], "--preset and --flags were both given"),
        (["import", "{run}", "{tmp}/x.pt", "model.heads=2"], "no such field"),
        (["inspect", "{tmp}"], "the run has no complete checkpoint"),
        (["flags", "--", "--image_size", "64"], "--batch_size 1: is per process there"),
        (
            ["flags", "--processes", "2", "--", "mpiexec", "-n", "8", "python", "image_train.py", "--image_size", "64"],
            "--processes (got 2): the command itself starts 8: leave the option out, or change the command",
        ),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    program: ModuleType, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, err = call(program, capsys, *(word.format(run=run, tmp=tmp_path) for word in words))
    assert code == 2
    assert err.startswith("error: ")
    assert message.format(tmp=tmp_path) in err
    assert list(tmp_path.iterdir()) == []
