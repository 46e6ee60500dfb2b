"""Runs pods on this machine without containers: each in a network, a process tree and a view of the disk of its own. Needs root."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from localkube.network import Network
from localkube.podspec import PodSpec

ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"  # /var/run leads there
# The directories above this Python, which the pods' user has to pass; only their view of the disk is changed.
_PREFIXES = sorted({str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)})
_ABOVE = sorted({str(above) for prefix in _PREFIXES for above in Path(prefix).parents} - {"/"})


_TRIAL = """
ip link add ik type bridge
ip link add ika type veth peer name ikb
mount -t tmpfs tmpfs /mnt
mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
chroot /mnt/root setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all true
"""


def missing() -> str:
    """Why pods cannot be run here; empty where they can."""
    if os.geteuid() != 0:
        return "root is needed to make networks and file systems for pods"
    for program in ("ip", "unshare", "mount", "chroot", "setpriv", "hostname", "openssl"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    words = ["unshare", "-n", "-m", "-u", "-p", "--fork", "/bin/sh", "-ec", _TRIAL]  # gone with its last process
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"networks and file systems for pods cannot be made here: {done.stderr.strip()}"


@dataclass
class Pod:
    """A pod and what has become of it.

    Attributes:
        last: number of its address.
        phase: Pending, Running or Failed.
        process: the outermost process of the Ray container; None while pending.
        deleted: when it was told to go; None if it was not.
        window_s: between SIGTERM and SIGKILL, once it was told.
        reclaimed: whether its machine goes; the API server then shows the pod as running until it has ended.
    """

    spec: PodSpec
    last: int
    folder: Path
    phase: str = "Pending"
    process: subprocess.Popen[bytes] | None = None
    sidecar: subprocess.Popen[bytes] | None = None
    deleted: float | None = None
    window_s: float = 0.0
    reclaimed: bool = False
    exited_s: float | None = None
    killed: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    def first(self) -> psutil.Process | None:
        """Process 1 inside the pod."""
        if self.process is None or self.process.poll() is not None:
            return None
        children = psutil.Process(self.process.pid).children()
        return children[0] if children else None


@dataclass
class Kubelet:
    """Starts, stops and kills pods below a folder; what lies in `shared` all of them see, as they would a bucket.

    Attributes:
        capacity: how many worker pods find a machine; the others stay Pending.
        maps: what ConfigMaps hold, by name and file.
        account: token and certificate of the API server, for sidecars.
        worlds: the process trees that were killed.
    """

    folder: Path
    shared: Path
    path: str
    network: Network = field(default_factory=Network.take)
    capacity: int = 100
    maps: dict[str, dict[str, str]] = field(default_factory=dict)
    account: dict[str, str] = field(default_factory=dict)
    server: tuple[str, int] = ("", 0)
    pods: dict[str, Pod] = field(default_factory=dict)
    gone: list[Pod] = field(default_factory=list)
    worlds: set[str] = field(default_factory=set)
    _last: int = 9

    def close(self) -> None:
        """No pod, no network, no process of ours is left."""
        for pod in list(self.pods.values()):
            self._kill(pod)
        self.pods.clear()
        self.network.close()

    def add(self, spec: PodSpec) -> Pod:
        """A pod that is to run as soon as there is a machine; heads have the same address each time, as behind a service."""
        self._last += 1
        pod = Pod(spec, 2 if spec.head else self._last, self.folder / spec.name)
        self.pods[spec.name] = pod
        return pod

    def sync(self, *, head_is_up: bool) -> None:
        """Starts what can start, kills what is overdue, and notices what has ended.

        Args:
            head_is_up: workers wait for the head, in an init container.
        """
        running = sum(not pod.spec.head and pod.phase == "Running" for pod in self.pods.values())
        for pod in list(self.pods.values()):
            if pod.phase == "Pending" and pod.deleted is None:
                if pod.spec.head or (head_is_up and running < self.capacity):
                    running += not pod.spec.head
                    self._start(pod)
            elif pod.deleted is not None:
                over = pod.process is None or pod.process.poll() is not None
                if not over and time.time() - pod.deleted >= pod.window_s:
                    pod.killed = over = True
                if over:
                    pod.exited_s = time.time() - pod.deleted
                    self._kill(pod)
                    self.gone.append(self.pods.pop(pod.name))
            elif pod.process is not None and pod.process.poll() is not None:
                pod.phase = "Failed"

    def delete(self, name: str, *, window_s: float | None = None) -> None:
        """SIGTERM to process 1, and SIGKILL after the pod's grace or the machine's window, whichever is shorter."""
        pod = self.pods[name]
        if pod.deleted is not None:
            return
        pod.deleted, pod.reclaimed = time.time(), window_s is not None
        pod.window_s = pod.spec.grace_s if window_s is None else min(pod.spec.grace_s, window_s)
        first = pod.first()
        if first is not None:
            first.send_signal(signal.SIGTERM)

    def lose(self, name: str) -> None:
        """The machine is gone, without a word."""
        pod = self.pods.pop(name)
        pod.killed = True
        self._kill(pod)
        self.gone.append(pod)

    def _start(self, pod: Pod) -> None:
        pod.folder.mkdir(parents=True)
        space = self.network.plug(pod.last)
        for name in pod.spec.mounts:
            for file, text in self.maps[name].items():
                (pod.folder / "maps" / name).mkdir(parents=True, exist_ok=True)
                (pod.folder / "maps" / name / file).write_text(text)
        for name, text in self.account.items():
            (pod.folder / "account").mkdir(exist_ok=True)
            (pod.folder / "account" / name).write_text(text)
        for name in ("ray", "ray-disk", "sidecar-disk"):
            (pod.folder / name).mkdir()
        os.chown(pod.folder / "ray", pod.spec.user, pod.spec.user)
        pod.process = self._container(pod, space, "ray", pod.spec.command)
        if pod.spec.sidecar:
            pod.sidecar = self._container(pod, space, "sidecar", pod.spec.sidecar)
        pod.phase = "Running"

    def _container(self, pod: Pod, space: str, kind: str, command: list[str]) -> subprocess.Popen[bytes]:
        root, disk = pod.folder / f"{kind}-root", pod.folder / f"{kind}-disk"
        root.mkdir()
        binds = {str(self.shared): str(self.shared), str(pod.folder / "ray"): "/tmp/ray"}
        binds |= {prefix: prefix for prefix in _PREFIXES if prefix.startswith("/tmp/")}  # a pod has a /tmp of its own
        binds |= {str(pod.folder / "maps" / name): place for name, place in pod.spec.mounts.items() if kind == "ray"}
        if kind == "sidecar":
            binds[str(pod.folder / "account")] = ACCOUNT
        lines = [
            "ulimit -n 65536 || true",  # containers may have as many
            f"mount -t tmpfs tmpfs {disk}",
            f"mkdir {disk}/up {disk}/work",
            f"mount -t overlay overlay -o lowerdir=/,upperdir={disk}/up,workdir={disk}/work {root}",
            f"mount --rbind /dev {root}/dev",
            f"mount -t tmpfs -o size={pod.spec.shm} tmpfs {root}/dev/shm",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /sys {root}/sys",
            f"mount -t tmpfs tmpfs {root}/tmp",
            f"hostname {pod.name}",  # ranks find each other by what a machine calls itself
            f"printf '127.0.0.1 localhost\\n{self.network.address(pod.last)} {pod.name}\\n' > {root}/etc/hosts",
        ]
        for source, place in binds.items():
            lines += [f"mkdir -p {root}{place}", f"mount --bind {source} {root}{place}"]
        lines += [f"chmod o+rx {root}{place}" for place in _ABOVE]
        workdir = self.shared / "app"
        program = f"cd {workdir} && exec {shlex.join(command)}"
        # To become another user forgets that one is to die with one's parent.
        who = f"--pdeathsig KILL --reuid {pod.spec.user} --regid {pod.spec.user} --clear-groups --no-new-privs"
        who += " --inh-caps=-all --bounding-set=-all"
        lines.append(f"exec chroot {root} setpriv {who} /bin/bash -c {shlex.quote(program)}")
        host, port = self.server
        env = {
            "PATH": self.path,
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(workdir),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "RAY_HEAD_POD_NAME": pod.name if pod.spec.head else "",
            **pod.spec.env,
        }
        log = (pod.folder / f"{kind}.log").open("wb")
        words = [
            "ip",
            "netns",
            "exec",
            space,
            "unshare",
            "-m",
            "-u",
            "-p",
            "--fork",
            "--kill-child=SIGKILL",
            "/bin/sh",
            "-ec",
            "\n".join(lines),
        ]
        return subprocess.Popen(words, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def _kill(self, pod: Pod) -> None:
        for process in (pod.process, pod.sidecar):
            if process is not None:
                if process.poll() is None:
                    for first in psutil.Process(process.pid).children():
                        self.worlds.add(_world(first.pid))
                        first.kill()  # with process 1 goes all of its tree
                    process.kill()
                process.wait(30)
        self.network.unplug(pod.last)

    def left(self) -> list[psutil.Process]:
        """Processes of killed pods that live on; the last of them may take a moment to die."""
        deadline = time.time() + 10
        while True:
            living = [process for process in psutil.process_iter() if _world(process.pid) in self.worlds - {""}]
            if not living or time.time() > deadline:
                return living
            time.sleep(0.2)

    def as_objects(self) -> list[dict[str, object]]:
        """The pods as the API server shows them."""
        return [_object(pod, self.network.address(pod.last)) for pod in list(self.pods.values())]


def _object(pod: Pod, ip: str) -> dict[str, object]:
    state = {"Pending": {}, "Running": {"running": {}}, "Failed": {"terminated": {"exitCode": 1}}}[pod.phase]
    metadata: dict[str, object] = {"name": pod.name, "labels": pod.spec.labels, "namespace": "iddpm", "resourceVersion": "1"}
    if pod.deleted is not None and not pod.reclaimed:
        metadata["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(pod.deleted))
    status: dict[str, object] = {"phase": pod.phase, "podIP": ip}
    if state:
        status["containerStatuses"] = [{"name": "ray", "state": state, "ready": pod.phase == "Running"}]
    containers = [{"name": "ray", "resources": {}}]
    return json.loads(json.dumps({"metadata": metadata, "status": status, "spec": {"containers": containers}}))


def _world(pid: int) -> str:
    """The process tree that a process can see; empty where it has none any more."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
