"""An API server that speaks enough for Ray's own autoscaler: RayClusters and pods over HTTPS; patches are held against the schema."""

import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from iddpm_ray.errors import UserError
from iddpm_ray.kube.kustomize import apply
from iddpm_ray.kube.schema import check_schema

_CLUSTER = re.compile(r"/apis/ray\.io/v1/namespaces/[^/]+/rayclusters/([^/?]+)")
_PODS = re.compile(r"/api/v1/namespaces/[^/]+/pods(?:/([^/?]+))?")


class ApiServer:
    """Serves until closed; `patched` is told of every patch that was taken."""

    def __init__(self, folder: Path, *, host: str, token: str, pods: Callable[[], list[dict[str, Any]]]) -> None:
        self.clusters: dict[str, dict[str, Any]] = {}
        self.patches: list[tuple[float, Any]] = []
        self.lock = threading.RLock()
        self.token, self.pods, self.version = token, pods, 1
        key, self.certificate = folder / "api.key", folder / "api.crt"
        subject = ["-subj", "/CN=kubernetes", "-addext", f"subjectAltName=IP:{host}"]
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
        subprocess.run([*words, "-keyout", str(key), "-out", str(self.certificate)], check=True, capture_output=True)
        self.http = ThreadingHTTPServer((host, 443), self._handler())  # the port that Ray expects it at
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        return str(self.http.server_address[0]), int(self.http.server_address[1])

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Status and object for a request."""
        with self.lock:
            if found := _CLUSTER.match(path):
                one = self.clusters.get(found[1])
                if one is None:
                    return 404, {"message": f"no RayCluster {found[1]}"}
                return self._patch(one, json.loads(body)) if method == "PATCH" else (200, one)
            if found := _PODS.match(path):
                pods = self.pods()
                if found[1]:
                    named = [pod for pod in pods if pod["metadata"]["name"] == found[1]]
                    return (200, named[0]) if named else (404, {"message": f"no pod {found[1]}"})
                return 200, {"kind": "PodList", "metadata": {"resourceVersion": str(self.version)}, "items": pods}
            return 404, {"message": path}

    def _patch(self, one: dict[str, Any], operations: Any) -> tuple[int, Any]:
        changed = json.loads(json.dumps(one))
        try:
            for operation in operations:
                if operation["op"] == "replace" and operation["path"].endswith("/scaleStrategy"):
                    operation = {**operation, "op": "add"}  # the API server's defaulting makes the place
                apply(changed, operation, source="patch")
        except UserError as error:
            return 422, {"message": str(error)}
        if flaws := list(check_schema({key: value for key, value in changed.items() if key != "status"} | {"metadata": _named(changed)})):
            return 422, {"message": str(flaws[0])}
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        one.clear()
        one.update(changed)
        self.patches.append((time.time(), operations))
        return 200, one

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            """Every request needs the token of the service account."""

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Authorization") != f"Bearer {server.token}":
                    code, answer = 401, {"message": "Unauthorized"}
                else:
                    code, answer = server.answer(self.command, self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = _do

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        return Handler


def _named(one: dict[str, Any]) -> dict[str, Any]:
    return {key: one["metadata"][key] for key in ("name", "namespace", "labels", "annotations") if key in one["metadata"]}
