"""Work on numbered items cut into chunks, each one whole file: a file that is there is done, and a folder is one job's alone.

{url}/job.json                        what the job is: everything that decides its bytes
{url}/chunks/chunk-00000012.npz       items [12 * size, 13 * size)
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from iddpm_ray import storage
from iddpm_ray.errors import DataError, SpecError

JOB_FILE = "job.json"
_FOLDER = "chunks"
_CHUNK = re.compile(r"chunk-(\d{8,})\.[a-z0-9]+")

Work = Callable[[int], bytes]
"""From a chunk's number to the content of its file."""


class Worker(Protocol):
    """What a process needs to work on chunks; it is pickled and sent there."""

    def open(self) -> Work:
        """Loads what the work needs, once a process; called after the process has set its threads."""
        ...


@dataclass(frozen=True)
class Chunks:
    """The chunks of a job.

    Attributes:
        url: the job's folder, at any fsspec URL.
        count: items in all.
        size: items a chunk; the last one may have fewer.
        extension: of the chunks' files, without a dot.
    """

    url: str
    count: int
    size: int
    extension: str

    @property
    def num_chunks(self) -> int:
        """How many files make the job."""
        return -(-self.count // self.size)

    def items(self, chunk: int) -> range:
        """The items of a chunk."""
        return range(chunk * self.size, min((chunk + 1) * self.size, self.count))

    def url_of(self, chunk: int) -> str:
        """Where a chunk's file is, or will be."""
        return storage.join(self.url, _FOLDER, f"chunk-{chunk:08d}.{self.extension}")

    def missing(self) -> list[int]:
        """The chunks that are not done, in order; one listing."""
        there = {storage.name(self.url_of(chunk)): chunk for chunk in range(self.num_chunks)}
        for entry in storage.list_dir(storage.join(self.url, _FOLDER)):
            there.pop(entry.name, None)
        return list(there.values())

    def commit(self, chunk: int, data: bytes) -> None:
        """Writes a chunk's file whole; who writes it a second time writes the same bytes."""
        storage.write_whole(self.url_of(chunk), data)

    def read(self, chunk: int) -> bytes:
        """The content of a chunk's file.

        Raises:
            DataError: it is not there.
        """
        try:
            return storage.read_bytes(self.url_of(chunk))
        except FileNotFoundError:
            what = f"{storage.name(self.url_of(chunk))} is missing"
            raise DataError(what, value=storage.shown(self.url), fix="the same command makes it again") from None

    def read_all(self, *, ahead: int = 4) -> Iterator[bytes]:
        """The content of every file in order, a few of them fetched ahead.

        Raises:
            DataError: one is not there.
        """
        with ThreadPoolExecutor(ahead) as threads:
            fetching = [threads.submit(self.read, chunk) for chunk in range(min(ahead, self.num_chunks))]
            for chunk in range(self.num_chunks):
                data = fetching.pop(0).result()
                if chunk + ahead < self.num_chunks:
                    fetching.append(threads.submit(self.read, chunk + ahead))
                yield data

    def clear(self) -> None:
        """Deletes the chunks' files, once nobody needs them; the job's settings stay."""
        storage.delete_tree(storage.join(self.url, _FOLDER))


def claim(url: str, settings: Mapping[str, Any], *, count: int, size: int, extension: str) -> Chunks:
    """Takes a folder for a job, or goes on with it if it is the same job's.

    Args:
        settings: everything that decides the bytes of the output, as plain JSON values, in words a person knows; `count` and `size` are
            added to it.

    Raises:
        SpecError: the folder holds another job, or chunks of nobody knows which; shows the difference.
    """
    chunks = Chunks(storage.absolute(url), count, size, extension)
    wanted = _plain({**settings, "count": count, "size": size})
    where, job_url = storage.shown(chunks.url), storage.join(chunks.url, JOB_FILE)
    found = read_settings(chunks.url)
    if found is None:
        if any(_CHUNK.fullmatch(entry.name) for entry in storage.list_dir(storage.join(chunks.url, _FOLDER))):
            raise SpecError(
                f"{where} holds chunks of a job but no {JOB_FILE} that says of which", fix="use another folder, or delete that one"
            )
        storage.create(job_url, json.dumps(wanted, indent=1).encode())
        found = read_settings(chunks.url)  # another driver may have been faster
    if found != wanted:
        apart, fix = _apart(found or {}, wanted), "use another folder, or ask for the same"
        raise SpecError(f"{where} holds the output of another job (there -> asked for: {apart})", fix=fix)
    return chunks


def read_settings(url: str) -> dict[str, Any] | None:
    """The settings of the job whose folder this is; None if it is nobody's.

    Raises:
        DataError: the file that says so is damaged.
    """
    try:
        said = json.loads(storage.read_bytes(storage.join(url, JOB_FILE)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise DataError(f"{JOB_FILE} is damaged", value=storage.shown(url), fix="use another folder, or delete that one")
    return said


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """A line for each setting that differs: `seed: 0 -> 1`."""
    names = [*found, *(name for name in wanted if name not in found)]
    return [f"{name}: {_said(found, name)} -> {_said(wanted, name)}" for name in names if _said(found, name) != _said(wanted, name)]


def _apart(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between two jobs, in a line; of different kinds nothing else need be said."""
    other_kind = found.get("job") != wanted.get("job")
    changes = differences({"job": found.get("job")}, {"job": wanted.get("job")}) if other_kind else differences(found, wanted)
    return "; ".join(changes)


def work_here(chunks: Chunks, worker: Worker, *, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Does what is missing in this process, one chunk after another.

    Args:
        progress: called with items done and items in all.
    """
    missing = chunks.missing()
    done = chunks.count - sum(len(chunks.items(chunk)) for chunk in missing)
    progress(done, chunks.count)
    work = worker.open() if missing else None
    for chunk in missing:
        assert work is not None
        chunks.commit(chunk, work(chunk))
        done += len(chunks.items(chunk))
        progress(done, chunks.count)


def _said(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "nothing"
    text = json.dumps(settings[name])
    return text if len(text) <= 200 else f"{text[:160]} ... ({len(text)} characters)"


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As they come back from JSON: tuples as lists."""
    return json.loads(json.dumps(settings))
