"""A small Google Cloud Storage on loopback, for tests: the JSON API as far as gcsfs speaks it.

    with GcsServer(page_size=3) as server:
        fs = gcsfs.GCSFileSystem(endpoint_url=server.url, token="anon", project="p")

Simple, multipart and resumable uploads with ifGenerationMatch, ranged reads, listings by prefix, delimiter and page,
copies, deletes. Objects are replaced atomically and have generations, as the real ones do. `refuse` makes it answer
requests of a kind with an error status, to see what clients make of 429, 503 or 403; `bytes_per_s` makes its link slow;
with `expect` only the token that it handed out last at /token is let in.
"""

import base64
import hashlib
import json
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class _Object:
    data: bytes
    generation: int
    updated: str


@dataclass
class _Upload:
    bucket: str
    name: str
    only_if_absent: bool
    done: bool = False
    data: bytearray = field(default_factory=bytearray)


@dataclass
class _Refusal:
    method: str
    path: str
    status: int
    times: int
    after: bool


class GcsServer:
    """Serves while it is entered; every bucket name exists.

    Args:
        page_size: objects a listing answers at once, whatever the client asks for.
    """

    def __init__(self, *, page_size: int = 1000) -> None:
        self.page_size = page_size
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.uploads: dict[str, _Upload] = {}
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.bytes_per_s: float | None = None
        self.tokens: list[str] = []
        self._expecting = False
        self._refusals: list[_Refusal] = []
        self._generation = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gcs": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def refuse(self, method: str, path: str, *, status: int, times: int, after: bool = False) -> None:
        """Answer the next `times` requests of that method whose path matches the pattern with a status; `after` doing what they ask."""
        with self.lock:
            self._refusals.append(_Refusal(method, path, status, times, after))

    def expect(self, token: str) -> None:
        """From now on let nobody in but with this token, or with a newer one from /token."""
        self.tokens, self._expecting = [token], True

    def calm(self) -> None:
        """No more refusals, no slow link, anybody may come in, nothing remembered."""
        with self.lock:
            self._refusals, self.bytes_per_s, self._expecting, self.tokens, self.requests = [], None, False, [], []

    def __enter__(self) -> "GcsServer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def knows(self, authorization: str) -> bool:
        """Whether whoever says this may come in."""
        return not self._expecting or authorization == f"Bearer {self.tokens[-1]}"

    def refusal(self, method: str, path: str) -> _Refusal | None:
        """How to refuse this request, if it is to be refused."""
        with self.lock:
            self.requests.append((method, path))
            for refusal in self._refusals:
                if refusal.method == method and refusal.times > 0 and re.search(refusal.path, path):
                    refusal.times -= 1
                    return refusal
        return None

    def put(self, bucket: str, name: str, data: bytes, *, only_if_absent: bool) -> _Object | None:
        """Replace an object at once; None if it had to be absent and is not."""
        with self.lock:
            objects = self.buckets.setdefault(bucket, {})
            if only_if_absent and name in objects:
                return None
            self._generation += 1
            objects[name] = _Object(bytes(data), self._generation, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}")
            return objects[name]


class _Handler(BaseHTTPRequestHandler):
    gcs: GcsServer
    _refused: _Refusal | None = None
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        body = self._body()
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if self.gcs.bytes_per_s is not None:
            time.sleep(len(body) / self.gcs.bytes_per_s)
        if parts.path == "/token":
            self.gcs.tokens.append(uuid.uuid4().hex)
            self._json({"access_token": self.gcs.tokens[-1], "expires_in": 3600, "token_type": "Bearer"})
            return
        if not self.gcs.knows(self.headers.get("Authorization", "")):
            self._error(401)
            return
        self._refused = self.gcs.refusal(method, unquote(self.path))
        if self._refused is not None and not self._refused.after:
            self._error(self._refused.status)
            return
        found = re.fullmatch(r"(/upload|/download)?/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", parts.path)
        if not found:
            self._error(404)
            return
        bucket, name = unquote(found.group(2)), found.group(3)
        if found.group(1) == "/upload":
            self._upload(bucket, query, body)
        elif method == "POST" and name and "/rewriteTo/" in name:
            self._rewrite(bucket, name)
        elif method == "GET" and name is None:
            self._json(self._listing(bucket, query) if parts.path.endswith("/o") else {"name": bucket, "id": bucket})
        elif name is not None:
            self._object(method, bucket, unquote(name), query)
        else:
            self._error(404)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _object(self, method: str, bucket: str, name: str, query: dict[str, str]) -> None:
        with self.gcs.lock:
            stored = self.gcs.buckets.get(bucket, {}).get(name)
            if stored is not None and method == "DELETE":
                del self.gcs.buckets[bucket][name]
        if stored is None:
            self._error(404)
        elif method == "DELETE":
            self._send(204, b"")
        elif query.get("alt") == "media":
            self._media(stored.data)
        else:
            self._json(_resource(bucket, name, stored))

    def _media(self, data: bytes) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not found:
            self._send(200, data)
            return
        start, end = int(found.group(1)), int(found.group(2) or len(data) - 1)
        if start >= len(data):
            self._error(416)
            return
        part = data[start : end + 1]
        self._send(206, part, {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(data)}"})

    def _listing(self, bucket: str, query: dict[str, str]) -> dict[str, object]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        with self.gcs.lock:
            objects = dict(self.gcs.buckets.get(bucket, {}))
        entries: dict[str, _Object | None] = {}
        for name in sorted(objects):
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                folder = prefix + rest[: rest.index(delimiter) + 1] if delimiter and delimiter in rest else None
                entries[folder or name] = None if folder else objects[name]
        names = [name for name in sorted(entries) if name > query.get("pageToken", "")]
        page = names[: self.gcs.page_size]
        answer: dict[str, object] = {
            "kind": "storage#objects",
            "items": [_resource(bucket, name, stored) for name in page if (stored := entries[name]) is not None],
            "prefixes": [name for name in page if entries[name] is None],
        }
        return answer | ({"nextPageToken": page[-1]} if len(names) > len(page) else {})

    def _upload(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        only_if_absent = query.get("ifGenerationMatch") == "0"
        if "upload_id" in query:
            self._continue_upload(query["upload_id"], body)
        elif query["uploadType"] == "resumable":
            name = query.get("name") or json.loads(body)["name"]
            key = uuid.uuid4().hex
            with self.gcs.lock:
                self.gcs.uploads[key] = _Upload(bucket, name, only_if_absent)
            self._send(200, b"", {"Location": f"{self.gcs.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={key}"})
        else:
            boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])
            assert boundary
            mark = b"--" + boundary.group(1).encode()
            first, second = body.split(mark, 2)[1:]
            name = json.loads(first.split(b"\n\n", 1)[1])["name"]
            content = second.split(b"\n\n", 1)[1]
            self._put(bucket, name, content[: content.rindex(b"\n" + mark)], only_if_absent)

    def _continue_upload(self, key: str, body: bytes) -> None:
        with self.gcs.lock:
            upload = self.gcs.uploads.get(key)
        if upload is None:
            self._error(404)
            return
        if self.command == "DELETE":
            self._send(499, b"")
            return
        if upload.done:  # the client did not hear of it, and asks again
            with self.gcs.lock:
                stored = self.gcs.buckets[upload.bucket][upload.name]
            self._json(_resource(upload.bucket, upload.name, stored))
            return
        if begins := re.match(r"bytes (\d+)-", self.headers["Content-Range"]):
            del upload.data[int(begins.group(1)) :]
        upload.data.extend(body)
        if self.headers["Content-Range"].endswith("/*") or int(self.headers["Content-Range"].rsplit("/", 1)[1]) > len(upload.data):
            self._send(308, b"", {"Range": f"bytes=0-{len(upload.data) - 1}"})
        else:
            upload.done = True
            self._put(upload.bucket, upload.name, bytes(upload.data), upload.only_if_absent)

    def _rewrite(self, bucket: str, name: str) -> None:
        source, _, target = name.partition("/rewriteTo/b/")
        to_bucket, _, to_name = target.partition("/o/")
        with self.gcs.lock:
            stored = self.gcs.buckets.get(bucket, {}).get(unquote(source))
        if stored is None:
            self._error(404)
            return
        made = self.gcs.put(unquote(to_bucket), unquote(to_name), stored.data, only_if_absent=False)
        assert made
        self._json({"done": True, "resource": _resource(unquote(to_bucket), unquote(to_name), made)})

    def _put(self, bucket: str, name: str, data: bytes, only_if_absent: bool) -> None:
        stored = self.gcs.put(bucket, name, data, only_if_absent=only_if_absent)
        if stored is None:
            self._error(412)
        else:
            self._json(_resource(bucket, name, stored))

    def _json(self, answer: object) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int) -> None:
        message = {
            401: "Invalid Credentials",
            403: "caller does not have storage.objects access",
            412: "conditionNotMet",
            503: "backendError",
        }.get(status, "error")
        self._send(status, json.dumps({"error": {"code": status, "message": message}}).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        if self._refused is not None and self._refused.after:
            refused, self._refused = self._refused, None
            self._error(refused.status)
            return
        if self.gcs.bytes_per_s is not None:
            time.sleep(len(data) / self.gcs.bytes_per_s)
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _resource(bucket: str, name: str, stored: _Object) -> dict[str, object]:
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(stored.data)),
        "generation": str(stored.generation),
        "updated": stored.updated,
        "timeCreated": stored.updated,
        "md5Hash": base64.b64encode(hashlib.md5(stored.data).digest()).decode(),
    }
