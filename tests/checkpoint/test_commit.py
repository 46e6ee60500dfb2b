"""A checkpoint is whole or not there."""

import json
import os
import random
from pathlib import Path

import faulty
import pytest
from states import DIGEST, save_alone

from iddpm_ray.checkpoint import commit
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.marker import MARKER, DamagedError, FileRecord, Marker, NewerFormatError
from iddpm_ray.errors import CheckpointError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (100, 200, 300):
        assert save_alone(str(tmp_path), step).committed
    return tmp_path


def folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}.a0001"


def test_a_name_holds_step_and_attempt_and_nothing_else_is_a_name() -> None:
    for step, attempt in [(0, 1), (1000, 3), (123456789012, 12345)]:
        name = commit.checkpoint_name(step=step, attempt=attempt)
        assert commit.checkpoint_named("gs://b/run", name) == commit.checkpoint_at("gs://b/run", step=step, attempt=attempt)
    assert commit.checkpoint_name(step=1000, attempt=3) == "step-00001000.a0003"
    for name in ("step-1.a1", "step-00001000.a0003.partial", "step-00001000", "step-000001000.a0003", "../x", ""):
        assert commit.checkpoint_named("gs://b/run", name) is None


def test_only_what_is_marked_counts_newest_first(run: Path) -> None:
    (folder(run, 300) / MARKER).unlink()
    (run / "checkpoints" / "step-00000400.a0001").mkdir()
    (run / "checkpoints" / "notes.txt").write_text("mine")
    assert [checkpoint.step for checkpoint in commit.complete(str(run))] == [200, 100]
    assert commit.complete(str(run / "absent")) == []
    chosen = newest_readable(str(run))
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, chosen.rejected) == (200, ())


def test_the_marker_is_written_after_everything_else(tmp_path: Path) -> None:
    faulty.register()
    with faulty.faults() as log:
        assert save_alone(f"faulty://{tmp_path}", 5).committed
    written = [Path(path).name for operation, path in log if operation == "pipe_file"]
    assert written[-1] == MARKER
    assert {"data-00000-000.bin", "state.json", "tensors.json"} == set(written[:-1])


def test_what_the_marker_says_is_on_disk(run: Path) -> None:
    checkpoint = commit.complete(str(run))[0]
    marker = commit.verify(checkpoint)
    assert (marker.step, marker.attempt, marker.samples_seen, marker.spec_digest, marker.world_size) == (300, 1, 3000, DIGEST, 1)
    assert {name: record.size for name, record in marker.files.items()} == {
        file.name: file.stat().st_size for file in folder(run, 300).iterdir() if file.name != MARKER
    }
    assert commit.read_file(checkpoint, "state.json", marker=marker) == b'{"a": 1}'


def test_a_copied_checkpoint_opens_by_its_own_url(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    folder(run, 200).rename(moved)
    checkpoint, marker = commit.open_checkpoint(str(moved))
    assert (checkpoint.step, checkpoint.attempt, marker.step) == (200, 1, 200)


@pytest.mark.parametrize("file", ["data-00000-000.bin", "state.json", "tensors.json", MARKER])
@pytest.mark.parametrize("kept", ["nothing", "one byte", "half", "all but one byte"])
def test_a_cut_file_at_any_place_sends_us_to_the_next_older_checkpoint(run: Path, file: str, kept: str) -> None:
    path = folder(run, 300) / file
    size = path.stat().st_size
    os.truncate(path, {"nothing": 0, "one byte": 1, "half": size // 2, "all but one byte": size - 1}[kept])
    chosen = newest_readable(str(run))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 200
    assert len(chosen.rejected) == 1
    assert chosen.rejected[0].startswith("step-00000300.a0001 is damaged")
    assert file in chosen.rejected[0]


@pytest.mark.parametrize("file", ["data-00000-000.bin", "state.json", "tensors.json"])
def test_a_missing_file_sends_us_to_the_next_older_checkpoint_and_says_so(run: Path, file: str) -> None:
    (folder(run, 300) / file).unlink()
    chosen = newest_readable(str(run))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 200
    assert chosen.rejected == (f"step-00000300.a0001 is damaged: {file} is missing",)


@pytest.mark.parametrize("file", ["data-00000-000.bin", "state.json", "tensors.json"])
def test_a_flipped_bit_anywhere_is_found_by_reading_deep(run: Path, file: str) -> None:
    path = folder(run, 300) / file
    content = bytearray(path.read_bytes())
    place = random.Random(file).randrange(len(content) * 8)
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    chosen = newest_readable(str(run), deep=True)
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 200
    assert chosen.rejected == (f"step-00000300.a0001 is damaged: the content of {file} is not what was written",)


def test_a_flipped_bit_anywhere_in_the_marker_is_never_believed(run: Path) -> None:
    path = folder(run, 300) / MARKER
    content, marker = path.read_bytes(), commit.read_marker(commit.complete(str(run))[0])
    for place in range(0, len(content) * 8, 5):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            chosen = newest_readable(str(run), spec_digest=DIGEST)
        except NewerFormatError:
            continue
        assert chosen.checkpoint is not None
        assert chosen.marker == marker or (chosen.checkpoint.step == 200 and "step-00000300.a0001 is damaged" in chosen.rejected[0])


def test_several_damaged_ones_are_passed_over_one_by_one(run: Path) -> None:
    (folder(run, 300) / "tensors.json").unlink()
    (folder(run, 200) / MARKER).write_text("{}")
    chosen = newest_readable(str(run))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 100
    assert [reason[:20] for reason in chosen.rejected] == ["step-00000300.a0001 ", "step-00000200.a0001 "]


def test_no_readable_one_among_several_is_an_error_and_no_fresh_start(run: Path) -> None:
    for step in (100, 200, 300):
        (folder(run, step) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* can be read.*state.json is missing"):
        newest_readable(str(run))
    assert newest_readable(str(run / "absent")).checkpoint is None


def test_a_checkpoint_of_a_later_version_is_refused_by_name(run: Path) -> None:
    path = folder(run, 300) / MARKER
    path.write_text(json.dumps({"format": 2, "something": "else"}))
    with pytest.raises(NewerFormatError, match=r"step-00000300.a0001 was written by a newer version.*format 2.*reads up to 1.*install"):
        newest_readable(str(run))


def test_a_checkpoint_of_another_spec_is_refused(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"step-00000300.a0001 was made with another spec"):
        newest_readable(str(run), spec_digest="e" * 64)
    assert newest_readable(str(run), spec_digest=DIGEST).rejected == ()


GOOD = {"format": 1, "step": 300, "attempt": 1, "samples_seen": 1, "spec_digest": "", "world_size": 1, "files": {}}
HOSTILE = {
    "no object": b"[]",
    "no JSON": b"\x80\x04.",
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "a path up": json.dumps({**GOOD, "files": {"../../x": {"size": 1, "sha256": ""}}}).encode(),
    "an absolute path": json.dumps({**GOOD, "files": {"/etc/passwd": {"size": 1, "sha256": ""}}}).encode(),
    "itself": json.dumps({**GOOD, "files": {MARKER: {"size": 1, "sha256": ""}}}).encode(),
    "negative": json.dumps({**GOOD, "step": -300}).encode(),
    "a word for a number": json.dumps({**GOOD, "attempt": "1"}).encode(),
    "format zero": json.dumps({**GOOD, "format": 0}).encode(),
    "of another step": json.dumps({**GOOD, "step": 299}).encode(),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_marker_is_damage_and_nothing_else(run: Path, content: bytes) -> None:
    (folder(run, 300) / MARKER).write_bytes(content)
    chosen = newest_readable(str(run))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 200
    assert "step-00000300.a0001 is damaged" in chosen.rejected[0]


def test_a_checkpoint_is_unmarked_before_anything_else_of_it_is_deleted(tmp_path: Path) -> None:
    faulty.register()
    run_url = f"faulty://{tmp_path}"
    save_alone(run_url, 5)
    with faulty.faults() as log:
        commit.delete_checkpoint(commit.complete(run_url)[0])
    deleted = [Path(path).name for operation, path in log if operation == "rm_file"]
    assert deleted[0] == MARKER
    assert len(deleted) == 4
    assert commit.survey(run_url) == []


def test_nothing_is_marked_when_a_file_did_not_arrive(tmp_path: Path) -> None:
    checkpoint = commit.checkpoint_at(str(tmp_path), step=1, attempt=1)
    Path(checkpoint.url).mkdir(parents=True)
    (Path(checkpoint.url) / "a").write_bytes(b"12")
    marker = Marker(1, 1, 1, DIGEST, 2, {"a": FileRecord(2, ""), "b": FileRecord(3, "")})
    with pytest.raises(CheckpointError, match=r"b is missing after it was written.*all workers reach"):
        commit.seal(checkpoint, marker)
    assert commit.complete(str(tmp_path)) == []


def test_an_error_of_verify_can_be_told_from_other_errors(run: Path) -> None:
    (folder(run, 100) / "state.json").write_bytes(b'{"a": 2}')
    with pytest.raises(DamagedError, match=r"the content of state.json is not what was written"):
        commit.verify(commit.checkpoint_at(str(run), step=100, attempt=1))
