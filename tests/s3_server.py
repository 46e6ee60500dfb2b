"""moto's S3 on loopback, behind a door that refuses requests, does them and reports failure, or lets bytes through slowly.

At /credentials it hands out keys that expire in a moment, as the endpoint of a container does.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


@dataclass
class _Refusal:
    request: str
    status: int
    times: int
    after: bool


class S3Server:
    """Serves while it is entered."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.bytes_per_s: float | None = None
        self._refusals: list[_Refusal] = []
        self._lock = threading.Lock()
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def refuse(self, request: str, *, status: int, times: int, after: bool = False) -> None:
        """Answer the next `times` requests whose "METHOD path?query" matches the pattern with a status; `after` doing what they ask."""
        with self._lock:
            self._refusals.append(_Refusal(request, status, times, after))

    def calm(self) -> None:
        """No more refusals, no slow link, nothing remembered."""
        with self._lock:
            self._refusals, self.bytes_per_s, self.requests = [], None, []

    def __enter__(self) -> "S3Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        asked = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        refusal = self._refusal(asked)
        if environ["PATH_INFO"] == "/credentials":
            soon = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"AccessKeyId": "k", "SecretAccessKey": "s", "Token": "t", "Expiration": soon}).encode()]
        if self.bytes_per_s is not None:
            time.sleep(int(environ.get("CONTENT_LENGTH") or 0) / self.bytes_per_s)
        if refusal is None or refusal.after:
            answer = self._moto(environ, start_response if refusal is None else lambda *_: lambda data: None)
            if refusal is None:
                return self._slowly(answer) if self.bytes_per_s is not None else answer
            list(answer)
        elif int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        code = {429: "TooManyRequests", 503: "SlowDown", 500: "InternalError", 403: "AccessDenied"}[refusal.status]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>planted</Message></Error>".encode()
        start_response(f"{refusal.status} planted", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    def _refusal(self, asked: str) -> _Refusal | None:
        with self._lock:
            self.requests.append(asked)
            for refusal in self._refusals:
                if refusal.times > 0 and re.search(refusal.request, asked):
                    refusal.times -= 1
                    return refusal
        return None

    def _slowly(self, answer: Iterable[bytes]) -> Iterable[bytes]:
        assert self.bytes_per_s is not None
        for piece in answer:
            time.sleep(len(piece) / self.bytes_per_s)
            yield piece
