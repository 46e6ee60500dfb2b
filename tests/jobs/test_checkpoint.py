"""What a person is told about checkpoints, and what nobody can remove by mistake."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from checkpoint.states import save_alone

from iddpm_ray.checkpoint.attempts import begin_attempt, take_attempt
from iddpm_ray.checkpoint.commit import Checkpoint, checkpoint_at, complete
from iddpm_ray.checkpoint.lease import release, take_lease
from iddpm_ray.checkpoint.marker import MARKER

PROGRAM = Path(__file__).parents[2] / "jobs" / "checkpoint.py"


@pytest.fixture(name="program", scope="module")
def program_fixture() -> ModuleType:
    """The program as a module."""
    found = importlib.util.spec_from_file_location("checkpoint_job", PROGRAM)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def begin(run: str, began_from: Checkpoint | None) -> int:
    number = take_attempt(run, info={})
    begin_attempt(run, number, began_from=began_from, info={})
    return number


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Steps 10 and 20 by attempt 1, 30 by it too late, 40 and 50 by attempt 2, and an unfinished 60."""
    url = str(tmp_path / "run")
    first = begin(url, None)
    save_alone(url, 10, attempt=first)
    save_alone(url, 20, attempt=first)
    second = begin(url, checkpoint_at(url, step=20, attempt=first))
    save_alone(url, 30, attempt=first)
    for step in (40, 50, 60):
        save_alone(url, step, attempt=second)
    (Path(checkpoint_at(url, step=60, attempt=second).url) / MARKER).unlink()
    return url


def test_ls_shows_each_with_its_place_in_the_run(program: ModuleType, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["ls", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "attempt", "bytes", "age", "state", "in", "the", "run", "name"]
    said = [(line.split()[0], line.split()[1], line.split()[-3], line.split()[-2], line.split()[-1]) for line in lines[1:]]
    assert said == [
        ("60", "2", "partial", "yes", "step-00000060.a0002"),
        ("50", "2", "complete", "yes", "step-00000050.a0002"),
        ("40", "2", "complete", "yes", "step-00000040.a0002"),
        ("30", "1", "complete", "no", "step-00000030.a0001"),
        ("20", "1", "complete", "yes", "step-00000020.a0001"),
        ("10", "1", "complete", "yes", "step-00000010.a0001"),
    ]
    size = sum(path.stat().st_size for path in Path(complete(run)[0].url).iterdir())
    assert f" {size:,} " in lines[2]
    assert program.main(["ls", run, "30"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_verify_finds_a_flipped_bit_and_says_so_with_its_exit_code(
    program: ModuleType, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["verify", run]) == 0
    assert capsys.readouterr().out.endswith("0 of 6 damaged\n")
    path = Path(complete(run)[1].url) / "data-00000-000.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 4
    path.write_bytes(content)
    assert program.main(["verify", run]) == 1
    said = capsys.readouterr().out
    assert "step-00000040.a0002 is damaged: the content of data-00000-000.bin is not what was written" in said
    assert "step-00000050.a0002: sound, 4 files" in said
    assert "step-00000060.a0002: partial, nobody reads it" in said
    assert said.endswith("1 of 6 damaged\n")
    assert program.main(["verify", run, "step-00000050.a0002"]) == 0


def test_rm_refuses_what_the_run_goes_on_from_or_began_from(program: ModuleType, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["rm", run, "50"]) == 2
    said = capsys.readouterr().err
    assert said == ("error: step-00000050.a0002 is the newest sound checkpoint: the run goes on from it: --force removes it all the same\n")
    assert program.main(["rm", run, "20"]) == 2
    assert "step-00000020.a0001 is what attempt 2 began from: --force" in capsys.readouterr().err
    assert len(complete(run)) == 5
    for which in ("10", "step-00000060.a0002"):
        assert program.main(["rm", run, which]) == 0
    assert "step-00000060.a0002: removed" in capsys.readouterr().out
    assert program.main(["rm", "--force", run, "50"]) == 0
    assert [one.step for one in complete(run)] == [40, 30, 20]


def flip(checkpoint: Checkpoint) -> None:
    path = Path(checkpoint.url) / "data-00000-000.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 4
    path.write_bytes(content)


def test_rm_keeps_the_newest_sound_one_and_not_a_damaged_one(program: ModuleType, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes are right where content is not, and the run goes back to the one before it."""
    newest = complete(run)[0]
    flip(newest)
    assert program.main(["rm", run, "40"]) == 2
    assert "step-00000040.a0002 is the newest sound checkpoint: the run goes on from it: --force" in capsys.readouterr().err
    assert program.main(["rm", run, "50"]) == 0
    assert [one.step for one in complete(run)] == [40, 30, 20, 10]
    for one in complete(run)[:3]:
        flip(one)
    assert program.main(["rm", run, "10"]) == 2
    assert "step-00000010.a0001 is the newest sound checkpoint" in capsys.readouterr().err
    assert program.main(["rm", run, "20"]) == 0, "attempt 2 began from it, but nobody can any more"


def test_rm_is_refused_while_a_driver_has_the_run(program: ModuleType, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    lease = take_lease(run, holder="anna on host-1", stale_after_s=60)
    assert program.main(["rm", run, "10"]) == 2
    said = capsys.readouterr().err
    assert re.search(
        r"error: \S+ is in the hands of anna on host-1 since 20\d\d-.* \(got renewed \d s ago\): stop that one .*--force", said
    )
    assert len(complete(run)) == 5
    assert program.main(["rm", "--force", run, "30"]) == 0
    release(lease)
    assert program.main(["rm", run, "10"]) == 0
    assert [one.step for one in complete(run)] == [50, 40, 20]


def test_what_is_not_there_is_named(program: ModuleType, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["rm", run, "11"]) == 2
    assert "no such checkpoint (got 11): there are step-00000060.a0002, step-00000050.a0002," in capsys.readouterr().err
    assert program.main(["ls", str(tmp_path / "elsewhere")]) == 2
    assert "no checkpoints here" in capsys.readouterr().err
    assert program.main(["rm", run, "../../etc"]) == 2
    with pytest.raises(SystemExit):
        program.main(["--help"])
    assert "ls|verify|rm" in capsys.readouterr().out
