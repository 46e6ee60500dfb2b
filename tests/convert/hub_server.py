"""A Hugging Face hub of one repository, as far as downloads ask: revisions, listings, and files with their checksums."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "1234567890abcdef1234567890abcdef12345678"


class Hub:
    """Serves `folder` as org/name at the revisions `main`, `v1` and its commit; `asked` are the paths of all requests."""

    def __init__(self, folder: Path) -> None:
        asked: list[str] = []
        self.asked = asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, *, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                asked.append(path)
                parts = path.strip("/").split("/")
                if parts[:4] == ["api", "models", "org", "name"]:
                    files = [str(one.relative_to(folder)) for one in sorted(folder.rglob("*")) if one.is_file()]
                    known = len(parts) < 6 or parts[5] in ("main", "v1", COMMIT)
                    if parts[4:5] == ["tree"]:
                        entries = [{"type": "file", "path": one, "size": (folder / one).stat().st_size, "oid": "0" * 40} for one in files]
                        self._send(200 if known else 404, json.dumps(entries).encode(), {"Content-Type": "application/json"}, body)
                        return
                    said = {
                        "id": "org/name",
                        "sha": COMMIT,
                        "siblings": [{"rfilename": one} for one in files],
                        "tags": [],
                        "private": False,
                    }
                    self._send(200 if known else 404, json.dumps(said).encode(), {"Content-Type": "application/json"}, body)
                    return
                if parts[:3] == ["org", "name", "resolve"] and (folder / "/".join(parts[4:])).is_file():
                    data = (folder / "/".join(parts[4:])).read_bytes()
                    self._send(200, data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}, body)
                    return
                self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, body)

            def _send(self, code: int, data: bytes, headers: dict[str, str], body: bool) -> None:
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
