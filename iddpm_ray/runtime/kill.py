"""Ends the processes of a worker group that does not answer any more, a frozen one included."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from iddpm_ray.runtime.pulse import Heard


@ray.remote(num_cpus=0, max_retries=0)
def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_ranks(heard: Mapping[int, Heard], *, timeout_s: float = 20.0) -> None:
    """Kills every rank where it runs; a rank on a node that is gone is past killing."""
    killing = [
        _kill.options(scheduling_strategy=NodeAffinitySchedulingStrategy(one.pulse.node, soft=False)).remote(one.pulse.pid)
        for one in heard.values()
    ]
    ray.wait(killing, num_returns=len(killing), timeout=timeout_s) if killing else None
