"""A run's checkpoints on real object-store protocols: attempts, saves, damage, retention, begin again."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import fsspec
import fsspec.config
import gcsfs.retry
import moto.s3.models
import pytest
import torch
from gcs_server import GcsServer
from google.oauth2.credentials import Credentials
from s3_server import S3Server
from states import DIGEST, all_same_bits, empty_like, state
from stores import SECRET, base_fixture, gcs_fixture, s3_fixture  # noqa: F401 fixtures are found by being here

from iddpm_ray import storage
from iddpm_ray.checkpoint import commit, reader, writer
from iddpm_ray.checkpoint.attempts import attempts, begin_attempt, refuse_if_superseded, take_attempt
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.retention import sweep
from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome
from iddpm_ray.storage import files, retry


def test_a_run_lives_on_every_store(base: str) -> None:
    number = take_attempt(base, info={"driver": "test"})
    begin_attempt(base, number, began_from=None, info={})
    swept = []
    saver = AsyncSaver(
        base,
        attempt=number,
        group=None,
        spec_digest=DIGEST,
        before_mark=lambda: refuse_if_superseded(base, number),
        after_commit=lambda _: swept.append(sweep(base, attempt=number, keep_last=2, keep_every=None, global_batch=1)),
    )
    for step in (1, 2, 3):
        saver.start(step, samples_seen=step, tensors=state(step), extra_files={"state.json": b"{}", "spec.yaml": b"run: {}\n"})
    outcome = saver.close()
    assert outcome is not None
    assert outcome.error is None
    assert [result.deleted for result in swept] == [(), (), ("step-00000001.a0001",)]
    assert [checkpoint.step for checkpoint in commit.complete(base)] == [3, 2]

    target = empty_like(state(3))
    newest = newest_readable(base, deep=True).checkpoint
    assert newest is not None
    load(newest, into=target)
    assert all_same_bits(target, state(3))

    file = storage.join(newest.url, "data-00000-000.bin")
    fs, path = fsspec.url_to_fs(file)
    fs.pipe_file(path, storage.read_bytes(file)[:-1])
    chosen = newest_readable(base)
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 2
    assert "step-00000003.a0001 is damaged: data-00000-000.bin is cut" in chosen.rejected[0]
    second = take_attempt(base, info={})
    begin_attempt(base, second, began_from=chosen.checkpoint, info={})
    assert [(attempt.number, attempt.from_step) for attempt in attempts(base)] == [(1, 0), (2, 2)]


def test_a_checkpoint_of_several_files_loads_on_every_store(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(reader, "_REQUEST_BYTES", 1 << 19)
    tensors = {f"w{index}": torch.full((100_000,), index, dtype=torch.float32) for index in range(5)}
    saver = AsyncSaver(base, attempt=1, group=None, spec_digest=DIGEST)
    saver.start(1, samples_seen=1, tensors=tensors)
    outcome = saver.close()
    assert outcome is not None
    assert outcome.error is None
    checkpoint = commit.complete(base)[0]
    assert sum(name.startswith("data-") for name in commit.read_marker(checkpoint).files) == 3
    target = {name: torch.zeros(100_000) for name in tensors}
    load(checkpoint, into=target)
    assert all(torch.equal(target[name], tensor) for name, tensor in tensors.items())


WORDS = {
    "s3": {
        "write": r"^PUT .*data-",
        "part": r"^PUT .*partNumber=2",
        "mark": r"^PUT .*marker",
        "read": r"^GET .*data-",
        "list": r"^GET .*list-type",
    },
    "gs": {"write": r"data-|/upload/", "part": "upload_id", "mark": "/upload/", "read": "data-", "list": r"/o\?"},
}
METHODS = {"write": "POST", "part": "POST", "mark": "POST", "read": "GET", "list": "GET"}


@dataclass(frozen=True)
class Flaky:
    """A place on a store that can be made to fail."""

    url: str
    server: S3Server | GcsServer

    def refuse(self, what: str, *, status: int, times: int = 1, after: bool = False) -> None:
        """Refuse the next requests of a kind: write, part, mark, read, list."""
        if isinstance(self.server, S3Server):
            self.server.refuse(WORDS["s3"][what], status=status, times=times, after=after)
        else:
            self.server.refuse(METHODS[what], WORDS["gs"][what], status=status, times=times, after=after)


async def _no_wait(seconds: float, result: object = None) -> None:
    """As asyncio.sleep, at once."""


@pytest.fixture(params=["s3", "gs"], name="flaky")
def flaky_fixture(
    request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server, gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Flaky]:
    """Parts of 256 KiB, files of 1 MiB, and nobody waits between two tries."""
    part = 256 * 2**10
    monkeypatch.setattr(files, "_PART_BYTES", part)
    monkeypatch.setattr(writer, "_FILE_BYTES", 4 * part)
    monkeypatch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=_no_wait))
    monkeypatch.setattr("aiobotocore.endpoint.asyncio", SimpleNamespace(sleep=_no_wait))
    monkeypatch.setattr("s3fs.core.asyncio.sleep", _no_wait)
    monkeypatch.setattr(retry, "PACE", retry.Pace(sleep=lambda seconds: None))
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": s3_server.url, "key": "someone", "secret": SECRET})
    monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": gcs_server.url, "token": "anon", "project": "p"})
    if request.param == "s3":
        bucket = "b" + tmp_path.name.lower().replace("_", "-")[-50:]
        fsspec.filesystem("s3").mkdir(bucket)
        flaky = Flaky(f"s3://{bucket}/run", s3_server)
    else:
        flaky = Flaky(f"gs://bucket/{tmp_path.name}", gcs_server)
    flaky.server.calm()
    yield flaky
    flaky.server.calm()


def tensors_of(step: int) -> dict[str, torch.Tensor]:
    """Two of 700 KiB: each is a file of its own, of three parts."""
    return {name: torch.full((179_200,), float(step), dtype=torch.float32) for name in ("a", "b")}


def saved(url: str, step: int) -> SaveOutcome:
    saver = AsyncSaver(url, attempt=1, group=None, spec_digest=DIGEST)
    saver.start(step, samples_seen=step, tensors=tensors_of(step), extra_files={"state.json": b"{}"})
    outcome = saver.close()
    assert outcome is not None
    return outcome


def comes_back(url: str, step: int) -> bool:
    chosen = newest_readable(url, deep=True)
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, chosen.rejected) == (step, ())
    target = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(step).items()}
    load(chosen.checkpoint, into=target)
    return all(torch.equal(target[name], tensor) for name, tensor in tensors_of(step).items())


def test_large_files_go_in_parts(flaky: Flaky) -> None:
    assert saved(flaky.url, 1).committed
    asked = [request if isinstance(request, str) else " ".join(request) for request in flaky.server.requests]
    parts = [request for request in asked if ("partNumber=" in request or "upload_id=" in request) and not request.startswith("DELETE")]
    assert len(parts) == 6, "two files of three parts"
    assert comes_back(flaky.url, 1)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("what", ["write", "part", "mark"])
def test_a_save_commits_through_a_busy_store(flaky: Flaky, what: str, status: int) -> None:
    flaky.refuse(what, status=status, times=2)
    outcome = saved(flaky.url, 1)
    assert outcome.error is None
    assert comes_back(flaky.url, 1)


@pytest.mark.parametrize("what", ["write", "part", "mark"])
def test_a_save_commits_though_the_store_reports_failure_after_it_has_written(flaky: Flaky, what: str) -> None:
    flaky.refuse(what, status=503, after=True)
    assert saved(flaky.url, 1).error is None
    assert comes_back(flaky.url, 1)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("what", ["read", "list"])
def test_a_resume_goes_through_a_busy_store(flaky: Flaky, what: str, status: int) -> None:
    assert saved(flaky.url, 1).committed
    flaky.refuse(what, status=status, times=2)
    assert comes_back(flaky.url, 1)


def test_more_than_the_client_bears_is_borne_here(flaky: Flaky) -> None:
    """Twenty refusals in a row: more than gcsfs, s3fs and botocore try by themselves."""
    flaky.refuse("mark", status=503, times=20)
    assert saved(flaky.url, 1).error is None
    assert comes_back(flaky.url, 1)


def test_a_refusal_for_good_is_said_at_once_and_the_next_save_succeeds(flaky: Flaky) -> None:
    flaky.refuse("write", status=403, times=1000)
    failed = saved(flaky.url, 1)
    assert not failed.committed
    assert "could not be written: permission denied" in str(failed.error)
    assert len(flaky.server.requests) < 30
    flaky.server.calm()
    assert saved(flaky.url, 2).committed
    assert comes_back(flaky.url, 2)


def test_a_slow_link_is_only_slow(flaky: Flaky) -> None:
    flaky.server.bytes_per_s = 4 * 2**20
    assert saved(flaky.url, 1).error is None
    assert comes_back(flaky.url, 1)


def test_a_token_that_expires_is_renewed_by_the_client(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server turns the old token away with 401; it is about to expire by its own account, so gcsfs fetches another."""
    soon = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=301)
    token = Credentials("old", refresh_token="r", token_uri=f"{gcs_server.url}/token", client_id="i", client_secret=SECRET, expiry=soon)
    monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": gcs_server.url, "token": token, "project": "p"})
    gcs_server.calm()
    gcs_server.expect("new")  # nobody has that one: the server and the client disagree from the start
    try:
        assert saved(f"gs://bucket/{tmp_path.name}", 1).error is None
        assert len(gcs_server.tokens) == 2, "fetched once"
        assert comes_back(f"gs://bucket/{tmp_path.name}", 1)
    finally:
        gcs_server.calm()


def test_keys_that_expire_are_renewed_by_the_client(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of the chain, each good for a moment only, as a container or an instance gets them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{s3_server.url}/credentials")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": s3_server.url})
    s3_server.calm()
    fsspec.filesystem("s3", key="someone", secret=SECRET, endpoint_url=s3_server.url).mkdir("renewed")
    assert saved("s3://renewed/run", 1).error is None
    assert comes_back("s3://renewed/run", 1)
    assert len([asked for asked in s3_server.requests if "/credentials" in asked]) > 1
