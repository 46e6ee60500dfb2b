import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow.parquet as pq
import pytest
from pictures import file_of, make_folder, make_parquet, noise
from PIL import Image

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.load import load

ROOT = Path(__file__).parent.parent.parent
PROGRAM = ROOT / "jobs" / "prepare.py"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    """The program as a module."""
    found = importlib.util.spec_from_file_location("prepare", PROGRAM)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_it_packs_checks_and_finds_what_is_done(prepare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "source", 20)
    arguments = [str(tmp_path / "source"), str(tmp_path / "packed"), "--image-size", "8x10", "--labels", "folder", "--rows-per-shard", "8"]
    assert prepare.main(arguments) == 0
    shown = capsys.readouterr()
    assert "packed 20 rows in 3 shards (0 rows were there)" in shown.out
    assert "20 of 20 rows (100 %)" in shown.err
    assert prepare.main([*arguments, "--verify"]) == 0
    assert "(20 rows were there)" in capsys.readouterr().out
    packed = manifests.build(str(tmp_path / "packed"), labels="folder")
    expected = load(manifests.build(str(tmp_path / "source")), np.arange(20), decoding=Decoding(8, 10)).pixels
    assert (load(packed, np.arange(20), decoding=Decoding(8, 10)).pixels == expected).all()


@pytest.mark.parametrize(
    ("flags", "decoding"),
    [
        (["--image-size", "16"], Decoding(16, 16)),
        ([], Decoding(64, 64)),
        (["--image-size", "8", "--channels", "1"], Decoding(8, 8, channels=1)),
        (["--image-size", "8", "--background", "9", "0", "7"], Decoding(8, 8, background=(9, 0, 7))),
        (["--image-size", "8", "--max-pixels", "500"], Decoding(8, 8, max_pixels=500)),
    ],
)
def test_flags_say_how_pixels_are_made(prepare: ModuleType, tmp_path: Path, flags: list[str], decoding: Decoding) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(file_of(Image.new("RGBA", (24, 20), (200, 0, 0, 90))))
    assert prepare.main([str(tmp_path / "source"), "memory://" + "-".join(flags or ["plain"]), *flags]) == 0
    packed = manifests.build("memory://" + "-".join(flags or ["plain"]))
    assert packed.packed is not None
    assert packed.packed.decoding == decoding
    source = load(manifests.build(str(tmp_path / "source")), np.array([0]), decoding=decoding)
    assert (load(packed, np.array([0]), decoding=decoding).pixels == source.pixels).all()


def test_a_damaged_row_group_is_no_failure_of_the_storage(prepare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_parquet(tmp_path / "source", [file_of(Image.fromarray(noise(i))) for i in range(4)], [0] * 4, files=1, group=2)
    file = tmp_path / "source" / "part-0.parquet"
    content, chunk = bytearray(file.read_bytes()), pq.read_metadata(file).row_group(1).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + 16] = b"\xff" * 16
    file.write_bytes(content)
    arguments = [str(tmp_path / "source"), str(tmp_path / "packed"), "--image-size", "8"]
    assert prepare.main(arguments) == 2
    said = capsys.readouterr().err
    assert "error: " in said
    assert "part-0.parquet, its row 2 (row 2) lies in row group 1, which cannot be read: " in said
    assert "--on-error substitute" in said
    assert prepare.main([*arguments, "--on-error", "substitute"]) == 0
    assert "packed 4 rows, 2 of them bad" in capsys.readouterr().out


def test_errors_are_one_line_and_exit_code_2(prepare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_folder(tmp_path / "source", 5)
    assert prepare.main([str(tmp_path / "absent"), str(tmp_path / "packed")]) == 2
    assert "error: data.path does not exist" in capsys.readouterr().err
    (tmp_path / "source" / paths[2]).write_bytes(b"")
    assert prepare.main([str(tmp_path / "source"), str(tmp_path / "packed")]) == 2
    assert f"{paths[2]} (row 2) is empty (0 bytes)" in capsys.readouterr().err
    assert prepare.main([str(tmp_path / "source"), str(tmp_path / "packed"), "--on-error", "substitute"]) == 0
    shown = capsys.readouterr().out
    assert "packed 5 rows, 1 of them bad" in shown
    assert f"{paths[2]} (row 2) is empty" in shown


def test_interrupted_it_says_how_to_go_on(
    prepare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "source", 5)

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare.pack, "pack", interrupt)
    assert prepare.main([str(tmp_path / "source"), str(tmp_path / "packed")]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_killed_half_way_it_goes_on_and_ends_the_same(prepare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").mkdir()
    for i in range(240):
        (tmp_path / "source" / f"{i:03d}.png").write_bytes(file_of(Image.fromarray(noise(i, height=200, width=200))))
    flags = ["--image-size", "32", "--rows-per-shard", "2", "--threads", "1"]
    arguments = [str(tmp_path / "source"), str(tmp_path / "packed"), *flags]
    process = subprocess.Popen(["nice", "-n", "10", sys.executable, str(PROGRAM), *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 200
    while not (tmp_path / "packed" / "shard-000002.u8.json").exists():
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    done = len(list((tmp_path / "packed").glob("*.u8.json")))
    assert 3 <= done < 120, "it was over before it could be killed"
    capsys.readouterr()
    assert prepare.main(arguments) == 0
    assert f"({2 * done} rows were there)" in capsys.readouterr().out
    assert prepare.main([str(tmp_path / "source"), str(tmp_path / "whole"), *flags]) == 0
    names = {entry.name for entry in storage.list_dir(str(tmp_path / "whole")) if not entry.name.endswith(".arrow")}
    assert len(names) == 241
    for name in names:
        assert (tmp_path / "packed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
