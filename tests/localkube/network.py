"""A private network for pods: a bridge on this machine, and for each pod a network of its own with one address on that bridge."""

import fcntl
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Network:
    """One of 256 networks; it belongs to the process that took it, and is free again when that has ended, however it ended."""

    number: int
    lock: int

    @classmethod
    def take(cls) -> "Network":
        """The first one that nobody has, cleared of what a killed process left."""
        for number in range(256):
            lock = os.open(f"/tmp/iddpm-pods-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            one = cls(number, lock)
            one._clear()
            _run("ip", "link", "add", one.bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{one.gateway}/24", "dev", one.bridge)
            _run("ip", "link", "set", one.bridge, "up")
            return one
        raise AssertionError("256 networks of pods are in use on this machine")

    @property
    def bridge(self) -> str:
        return f"ik{self.number}"

    @property
    def gateway(self) -> str:
        """This machine, as pods see it."""
        return self.address(1)

    @property
    def head(self) -> str:
        """The head's address; each head has the same, as behind a service."""
        return self.address(2)

    def address(self, last: int) -> str:
        return f"10.77.{self.number}.{last}"

    def plug(self, last: int) -> str:
        """Makes the network of a pod; its name, for `ip netns exec`."""
        space, outside = self._space(last), f"{self.bridge}.{last}"
        self.unplug(last)
        subprocess.run(["ip", "link", "del", outside], capture_output=True, check=False)
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "link", "set", outside, "master", self.bridge, "up")
        _run("ip", "-n", space, "link", "set", "lo", "up")
        _run("ip", "-n", space, "addr", "add", f"{self.address(last)}/24", "dev", "eth0")
        _run("ip", "-n", space, "link", "set", "eth0", "up")
        _run("ip", "-n", space, "route", "add", "default", "via", self.gateway)
        return space

    def unplug(self, last: int) -> None:
        """The pod's address answers no more."""
        subprocess.run(["ip", "netns", "del", self._space(last)], capture_output=True, check=False)

    def close(self) -> None:
        """Nothing of it is left."""
        self._clear()
        os.close(self.lock)

    def _clear(self) -> None:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout.splitlines()
        for space in [line.split()[0] for line in listed if line.startswith(self._space(""))]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        for folder in Path("/sys/class/net").glob(f"{self.bridge}.*"):
            subprocess.run(["ip", "link", "del", folder.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)

    def _space(self, last: int | str) -> str:
        return f"{self.bridge}-{last}"


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
