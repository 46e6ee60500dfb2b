"""What may pass is asked again, with growing random waits and not for ever; what will not change is asked once."""

import errno
from collections.abc import Callable
from typing import Any

import aiohttp
import botocore.exceptions
import faulty
import gcsfs.retry
import pytest
import requests
from s3fs.errors import translate_boto_error

from iddpm_ray.storage import retry
from iddpm_ray.storage.retry import Pace, patiently
from iddpm_ray.storage.transient import is_transient


def of_s3(status: int, code: str) -> Exception:
    """What s3fs raises for an answer of S3."""
    said: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate_boto_error(botocore.exceptions.ClientError(said, "PutObject"))


def of_gcs(status: int) -> Exception:
    """What gcsfs raises for an answer of GCS."""
    try:
        gcsfs.retry.validate_response(status, b'{"error": {"message": "m"}}', "path")
    except Exception as error:
        return error
    raise AssertionError(status)


PASSES = {
    "s3 503": of_s3(503, "SlowDown"),
    "s3 500": of_s3(500, "InternalError"),
    "s3 unknown 500": of_s3(500, "Whatever"),
    "s3 429": of_s3(429, "TooManyRequests"),
    "s3 expired token": of_s3(400, "ExpiredToken"),
    "s3 conflict": of_s3(409, "ConditionalRequestConflict"),
    "s3 unreachable": botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"),
    **{f"gcs {status}": of_gcs(status) for status in (408, 429, 500, 502, 503, 504)},
    "gcs cut off": aiohttp.ServerDisconnectedError(),
    "gcs payload": aiohttp.ClientPayloadError("cut"),
    "gcs checksum": gcsfs.retry.ChecksumError("x"),
    "http": requests.exceptions.ReadTimeout("slow"),
    "reset": ConnectionResetError(errno.ECONNRESET, "reset"),
    "timeout": TimeoutError(),
    "stale handle": OSError(errno.ESTALE, "stale"),
    "input/output": OSError(errno.EIO, "io"),
}
STAYS = {
    "s3 403": of_s3(403, "AccessDenied"),
    "s3 404": of_s3(404, "NoSuchKey"),
    "s3 unknown 400": of_s3(400, "Whatever"),
    "s3 412": of_s3(412, "PreconditionFailed"),
    **{f"gcs {status}": of_gcs(status) for status in (400, 401, 403, 404, 412, 501)},
    "no space": OSError(errno.ENOSPC, "full"),
    "quota": OSError(errno.EDQUOT, "full"),
    "permission": PermissionError(errno.EACCES, "no"),
    "read-only": OSError(errno.EROFS, "ro"),
    "absent": FileNotFoundError(errno.ENOENT, "gone"),
    "a mistake of ours": TypeError("x"),
}


@pytest.mark.parametrize("error", PASSES.values(), ids=PASSES.keys())
def test_what_may_pass(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", STAYS.values(), ids=STAYS.keys())
def test_what_will_not_change(error: Exception) -> None:
    assert not is_transient(error)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, on a clock that only they turn on."""
    waits: list[float] = []
    monkeypatch.setattr(retry, "PACE", Pace(sleep=waits.append, clock=lambda: sum(waits)))
    return waits


def failing(times: int, error: Exception) -> tuple[Callable[[], str], list[int]]:
    calls: list[int] = []

    @patiently
    def operation() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return operation, calls


def test_it_is_tried_until_it_succeeds(slept: list[float], caplog: pytest.LogCaptureFixture) -> None:
    operation, calls = failing(3, of_gcs(503))
    assert operation() == "done"
    assert len(calls) == 4
    assert len(slept) == 3
    assert "storage: operation failed: HttpError: m, 503; try 2 in" in caplog.text


def test_waits_grow_differ_and_end(slept: list[float]) -> None:
    operation, calls = failing(10**6, TimeoutError("no answer"))
    with pytest.raises(TimeoutError, match="no answer"):
        operation()
    assert 5 < len(calls) < 60
    assert len(set(slept)) == len(slept)
    assert all(wait <= min(0.25 * 2**number, 8.0) for number, wait in enumerate(slept))
    assert sum(slept) < 30.0


def test_what_will_not_change_is_asked_once(slept: list[float]) -> None:
    operation, calls = failing(10**6, PermissionError(errno.EACCES, "no"))
    with pytest.raises(PermissionError):
        operation()
    assert (len(calls), slept) == (1, [])


def test_a_client_that_was_patient_itself_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(retry, "PACE", Pace(sleep=lambda seconds: None, clock=lambda: now[0]))
    calls = []

    @patiently
    def operation() -> None:
        calls.append(1)
        now[0] += 36.0  # as long as gcsfs tries by itself
        raise of_gcs(503)

    with pytest.raises(gcsfs.retry.HttpError):
        operation()
    assert len(calls) == 1


def test_the_clock_of_fault_tests_is_turned_on_by_sleeping() -> None:
    pace = faulty.impatient()
    before = pace.clock()
    pace.sleep(100.0)
    assert pace.clock() - before >= 100.0
