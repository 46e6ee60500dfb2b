"""KubeRay's part: keeps the pods of a RayCluster as its spec says, and carries a RayJob in HTTPMode through to its end."""

import json
import re
import secrets
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localkube.apiserver import ApiServer
from localkube.kubelet import Kubelet, Pod
from localkube.podspec import GCS_PORT, head_pod, worker_pod

from iddpm_ray.kube.objects import get

JOB_PORT, AGENT_PORT = 8265, 52365
_TICK_S = 0.3
PATIENCE_S = 900.0
MOST_FAILED = 6


class LocalKube:
    """A namespace on this machine: applies objects, runs their pods, and writes down what happened when."""

    def __init__(self, folder: Path, shared: Path, *, path: str) -> None:
        folder.mkdir(exist_ok=True)
        self.kubelet = Kubelet(folder, shared, path)
        self.network = self.kubelet.network
        self.token, account = secrets.token_hex(32), secrets.token_hex(16)
        self.api = ApiServer(folder, host=self.network.gateway, token=account, pods=self.kubelet.as_objects)
        self.kubelet.server = self.api.address
        self.kubelet.account = {"token": account, "ca.crt": self.api.certificate.read_text(), "namespace": "iddpm"}
        self.timeline: list[tuple[float, str]] = []
        self.began = time.time()
        self.jobs: dict[str, dict[str, Any]] = {}
        self._over = threading.Event()
        self._made = 0
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def __enter__(self) -> "LocalKube":
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)
        self.api.close()
        self.kubelet.close()

    def note(self, text: str) -> None:
        """A line of the timeline."""
        self.timeline.append((time.time() - self.began, text))
        print(f"{self.timeline[-1][0]:7.1f} s  {text}", flush=True)

    def apply(self, objects: list[dict[str, Any]]) -> None:
        """What `kubectl apply` would do, for the kinds that run something."""
        with self.api.lock:
            for one in objects:
                one = json.loads(json.dumps(one))
                name = one["metadata"]["name"]
                if one["kind"] == "ConfigMap":
                    self.kubelet.maps[name] = one["data"]
                elif one["kind"] == "RayCluster":
                    one["metadata"].setdefault("resourceVersion", "1")
                    self.api.clusters[name] = one
                elif one["kind"] == "RayJob":
                    self.jobs[name] = one
                    one["status"] = {"jobDeploymentStatus": "Initializing", "began": time.time()}

    def delete_cluster(self, name: str) -> None:
        """Every pod is told to go."""
        with self.api.lock:
            del self.api.clusters[name]
            for pod in list(self.kubelet.pods):
                self.kubelet.delete(pod)

    def workers(self) -> list[Pod]:
        """Worker pods that have not been told to go."""
        return [pod for pod in list(self.kubelet.pods.values()) if not pod.spec.head and pod.deleted is None]

    def head(self) -> Pod | None:
        return next((pod for pod in list(self.kubelet.pods.values()) if pod.spec.head), None)

    def reclaim(self, name: str, *, window_s: float) -> float:
        """A spot machine's notice; the moment it came."""
        with self.api.lock:
            self.note(f"notice for {name}, {window_s:g} s")
            self.kubelet.delete(name, window_s=window_s)
            return time.time()

    def lose(self, name: str) -> None:
        """A machine that is gone without notice."""
        with self.api.lock:
            self.note(f"lost {name}")
            self.kubelet.lose(name)

    def until(self, true: Callable[[], Any], what: str, *, seconds: float = PATIENCE_S) -> Any:
        """Waits until something is so."""
        deadline = time.time() + seconds
        while not (found := true()):
            failed = sum(text.endswith(" has failed") for _, text in self.timeline)
            assert failed < MOST_FAILED, f"{failed} pods failed while waiting: {what}\n{self.logs()}"
            assert time.time() < deadline, f"not within {seconds:g} s: {what}\n{self.logs()}"
            time.sleep(0.2)
        return found

    def logs(self) -> str:
        """The ends of what pods have said."""
        files = sorted(self.kubelet.folder.glob("*/*.log"))
        return "\n".join(f"--- {file.parent.name}/{file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in files)

    @property
    def jobs_url(self) -> str:
        """The head's job API."""
        return f"http://{self.network.head}:{JOB_PORT}"

    def http(self, method: str, path: str, body: Any = None, *, token: str | None = "own") -> tuple[int, Any]:
        """A request to the job API, as the operator makes it."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {self.token if token == 'own' else token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.jobs_url}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except (OSError, ValueError) as error:
            return 0, str(error)

    def ready(self) -> bool:
        """Whether the head is ready by KubeRay's probe, which asks for its raylet and for Ray's state, and answers to jobs."""
        return _healthy(f"http://{self.network.head}:{AGENT_PORT}/api/healthz") and self.http("GET", "/api/jobs/")[0] == 200

    def _loop(self) -> None:
        while not self._over.is_set():
            try:
                with self.api.lock:
                    self._clusters()
                self._jobs()
            except Exception as error:  # the operator goes on
                self.note(f"operator: {type(error).__name__}: {error}")
            time.sleep(_TICK_S)

    def _clusters(self) -> None:
        up = _open(self.network.head, GCS_PORT)
        phases = {name: pod.phase for name, pod in self.kubelet.pods.items()}
        self.kubelet.sync(head_is_up=up)
        for name, pod in self.kubelet.pods.items():
            if phases.get(name) != pod.phase:
                self.note(f"{name} {pod.phase}")
        for pod in self.kubelet.gone:
            if pod.name not in self._told:
                self._told.add(pod.name)
                ended = "" if pod.exited_s is None else f" after {pod.exited_s:.1f} s{', killed' if pod.killed else ' by itself'}"
                self.note(f"{pod.name} gone{ended}")
        for cluster in list(self.api.clusters.values()):
            self._cluster(cluster)

    def _cluster(self, cluster: dict[str, Any]) -> None:
        spec, name = cluster["spec"], cluster["metadata"]["name"]
        token = self.token if get(spec, "authOptions", "mode") == "token" else None
        heads = [pod for pod in self.kubelet.pods.values() if pod.spec.head]
        for pod in heads:
            if pod.phase == "Failed":
                self.note(f"{pod.name} has failed")
                self.kubelet.lose(pod.name)
        if not heads:
            self.kubelet.add(head_pod(cluster, name=self._name(name, "head"), token=token))
        for group in spec["workerGroupSpecs"]:
            strategy = group.setdefault("scaleStrategy", {})
            mine = [pod for pod in self.kubelet.pods.values() if pod.spec.group == group["groupName"]]
            for pod in mine:
                if pod.name in (strategy.get("workersToDelete") or []) and pod.deleted is None:
                    self.note(f"autoscaler gives {pod.name} back")
                    self.kubelet.delete(pod.name)
                if pod.phase == "Failed":
                    self.kubelet.lose(pod.name)
            mine = [pod for pod in self.kubelet.pods.values() if pod.spec.group == group["groupName"]]
            living = [pod for pod in mine if pod.deleted is None or pod.reclaimed]
            wanted = min(group.get("replicas") or 0, group["maxReplicas"])
            for _ in range(wanted - len(living)):
                made = self.kubelet.add(
                    worker_pod(cluster, group, name=self._name(name, group["groupName"]), head_ip=self.network.head, token=token)
                )
                self.note(f"{made.name} wanted ({wanted} replicas)")

    def _name(self, cluster: str, kind: str) -> str:
        self._made += 1
        return f"{cluster}-{kind}-{self._made}"

    def _jobs(self) -> None:
        for name, job in list(self.jobs.items()):
            status, spec = job["status"], job["spec"]
            state = status["jobDeploymentStatus"]
            if state in ("Complete", "Failed"):
                if spec.get("shutdownAfterJobFinishes") and name in self.api.clusters:
                    self.note(f"RayJob {name} {state}: its cluster is deleted")
                    self.delete_cluster(name)
                continue
            if name not in self.api.clusters:
                made = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {**job["metadata"]}, "spec": spec["rayClusterSpec"]}
                self.apply([made])
                status["jobId"] = f"{name}-{secrets.token_hex(3)}"
            if state == "Initializing" and time.time() - status["began"] > spec["preRunningDeadlineSeconds"]:
                status |= {"jobDeploymentStatus": "Failed", "reason": "PreRunningDeadlineExceeded"}
                continue
            code, answer = self.http("GET", f"/api/jobs/{status['jobId']}")
            if code == 404 and self.ready():
                body = {"entrypoint": spec["entrypoint"], "submission_id": status["jobId"], "metadata": spec.get("metadata")}
                code, answer = self.http("POST", "/api/jobs/", body)
                self.note(f"RayJob {name}: submitted ({code})")
                status["posts"] = status.get("posts", 0) + (code == 200)
            elif code == 200 and answer["status"] != status.get("jobStatus"):
                status |= {"jobStatus": answer["status"], "message": answer.get("message"), "jobDeploymentStatus": "Running"}
                self.note(f"RayJob {name}: {answer['status']}")
                if answer["status"] in ("SUCCEEDED", "FAILED", "STOPPED"):
                    status["jobDeploymentStatus"] = "Failed" if answer["status"] == "FAILED" else "Complete"


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def _open(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(0.2)
        return one.connect_ex((host, port)) == 0


def copy_code(root: Path, destination: Path) -> None:
    """What the image's WORKDIR holds."""
    for name in ("jobs", "iddpm_ray"):
        shutil.copytree(root / name, destination / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def driver_log(text: str, pattern: str) -> re.Match[str] | None:
    """The last line of a log that fits."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    return found[-1] if found else None
