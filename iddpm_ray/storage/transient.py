"""Which failures of a store may pass by themselves: judged by type, error number and HTTP status, never by the words of a message."""

import errno
from collections.abc import Mapping

_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_CODES = frozenset(
    {  # what S3 and its likes say beside or instead of a status
        *("InternalError", "OperationAborted", "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable", "SlowDown"),
        *("Throttling", "ThrottlingException", "TooManyRequests", "TooManyRequestsException", "ConditionalRequestConflict"),
        *("ExpiredToken", "TokenRefreshRequired"),  # credentials of a chain are new by the next try
    }
)
_NUMBERS = frozenset(
    {
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.ENOBUFS, errno.EPIPE, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT),
        *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN),
        *(errno.ENETRESET, errno.ENETUNREACH, errno.ENOLINK, errno.ENOTCONN),
    }
)
_TYPES = frozenset(
    {  # of packages that need not be installed
        *("aiohttp.client_exceptions.ClientConnectionError", "aiohttp.client_exceptions.ClientPayloadError"),
        *("botocore.exceptions.HTTPClientError", "botocore.exceptions.ConnectionError", "botocore.exceptions.IncompleteReadError"),
        *("botocore.parsers.ResponseParserError",),
        *("fsspec.exceptions.FSTimeoutError", "gcsfs.retry.ChecksumError", "google.auth.exceptions.TransportError"),
        *("requests.exceptions.ChunkedEncodingError", "requests.exceptions.ConnectionError", "requests.exceptions.Timeout"),
        *("requests.exceptions.ContentDecodingError", "urllib3.exceptions.HTTPError"),
    }
)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment: busy, throttled, cut off, timed out. Refused, absent and full will not change."""
    chain = [error, *([error.__cause__] if error.__cause__ is not None else [])]  # s3fs makes Python's errors from botocore's
    for one in chain:
        status = _status(one)
        if status is not None and status >= 400:  # the store has answered, and knows best
            return status in _STATUSES or _code(one) in _CODES
    return any(_may_pass(one) for one in chain)


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if any(f"{kind.__module__}.{kind.__qualname__}" in _TYPES for kind in type(error).__mro__):
        return True
    return isinstance(error, OSError) and error.errno in _NUMBERS


def _status(error: BaseException) -> int | None:
    """The HTTP status of an answer that came: `code` (gcsfs), `status` (aiohttp), or inside `response` (botocore, requests)."""
    response = getattr(error, "response", None)
    inside = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, Mapping) else None
    found = (getattr(error, "code", None), getattr(error, "status", None), inside, getattr(response, "status_code", None))
    for value in found:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return None


def _code(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, Mapping) else ""
