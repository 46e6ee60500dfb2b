"""Laws of chunked work: what is there is done, whatever ended it goes on, and a folder is one job's alone."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from iddpm_ray import storage
from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.evaluate.chunks import Chunks, Work, claim, work_here


@dataclass(frozen=True)
class Squares:
    """Squares of the items as text; ends in the middle if told to, and counts its openings in a file."""

    chunks: Chunks
    dies_at: int = -1
    notes: Path | None = None

    def open(self) -> Work:
        if self.notes is not None:
            self.notes.write_text(self.notes.read_text() + "opened\n" if self.notes.exists() else "opened\n")

        def work(chunk: int) -> bytes:
            if chunk == self.dies_at:
                raise InterruptedError("the power went")
            if self.notes is not None:
                self.notes.write_text(self.notes.read_text() + f"{chunk}\n")
            return " ".join(str(item * item) for item in self.chunks.items(chunk)).encode()

        return work


def job(root: Path, **settings: object) -> Chunks:
    return claim(str(root), {"kind": "squares", **settings}, count=10, size=4, extension="txt")


def test_chunks_cover_every_item_once(tmp_path: Path) -> None:
    chunks = job(tmp_path)
    assert chunks.num_chunks == 3
    assert [item for chunk in range(3) for item in chunks.items(chunk)] == list(range(10))
    assert chunks.url_of(12).endswith("/chunks/chunk-00000012.txt")


def test_a_job_that_ended_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    chunks, notes = job(tmp_path / "job"), tmp_path / "notes"
    told: list[tuple[int, int]] = []
    with pytest.raises(InterruptedError):
        work_here(chunks, Squares(chunks, dies_at=1, notes=notes), progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 10), (4, 10)]
    assert chunks.missing() == [1, 2]
    again = job(tmp_path / "job")
    work_here(again, Squares(again, notes=notes), progress=lambda done, total: told.append((done, total)))
    assert told[2:] == [(4, 10), (8, 10), (10, 10)]
    assert notes.read_text().split() == ["opened", "0", "opened", "1", "2"]
    assert b" ".join(again.read_all(ahead=2)) == b"0 1 4 9 16 25 36 49 64 81"
    work_here(again, Squares(again, notes=notes))
    assert notes.read_text().split()[-1] == "2"  # nothing is missing, so nothing is opened


def test_files_half_written_are_not_done(tmp_path: Path) -> None:
    chunks = job(tmp_path)
    chunks.commit(0, b"whole")
    (tmp_path / "chunks" / ".chunk-00000001.txt.0123456789abcdef.partial").write_bytes(b"ha")
    assert chunks.missing() == [1, 2]
    with pytest.raises(DataError, match=r"chunk-00000001\.txt is missing"):
        list(chunks.read_all())
    chunks.clear()
    assert chunks.missing() == [0, 1, 2]
    assert job(tmp_path) == chunks  # still the same job's


def test_the_folder_of_another_job_is_refused_with_the_difference(tmp_path: Path) -> None:
    job(tmp_path, seed=0, classes=(1, 2))
    with pytest.raises(
        SpecError, match=r"output of another job \(there -> asked for: seed: 0 -> 1; eta: nothing -> 0.5\): use another folder"
    ) as refusal:
        job(tmp_path, seed=1, classes=(1, 2), eta=0.5)
    assert "classes" not in str(refusal.value)
    with pytest.raises(SpecError, match="size: 4 -> 5"):
        claim(str(tmp_path), {"kind": "squares", "seed": 0, "classes": [1, 2]}, count=10, size=5, extension="txt")


def test_chunks_that_are_nobodys_are_refused(tmp_path: Path) -> None:
    job(tmp_path).commit(0, b"x")
    (tmp_path / "job.json").unlink()
    with pytest.raises(SpecError, match=r"chunks of a job but no job\.json"):
        job(tmp_path)
    (tmp_path / "job.json").write_bytes(b"[1")
    with pytest.raises(DataError, match=r"job\.json is damaged"):
        job(tmp_path)


def test_what_is_missing_of_fifty_thousand_items_is_one_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = claim(str(tmp_path), {}, count=50_000, size=8, extension="txt")
    chunks.commit(7, b"done")
    listed: list[str] = []
    list_dir = storage.list_dir
    monkeypatch.setattr(storage, "list_dir", lambda url: listed.append(url) or list_dir(url))
    monkeypatch.setattr(storage, "exists", lambda url: pytest.fail(f"asked for {url} alone"))
    assert len(chunks.missing()) == 6249
    assert len(listed) == 1
