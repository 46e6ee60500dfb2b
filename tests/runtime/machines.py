"""A Ray of several nodes on this machine, whose nodes are drained, killed and added like spot machines."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from ray._private.utils import get_ray_address_file
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

MEMORY = 120 << 20


class Machines:
    """A head, and machines that come and go; used from the main thread."""

    def __init__(self, *, head_cpus: float = 0) -> None:
        noted = Path(get_ray_address_file(None))  # where Ray notes its newest cluster, in a folder that only `ray.init` makes
        noted.parent.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="rm", dir="/tmp")  # sockets need a short path
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 Ray spells it so
        os.environ["RAY_AUTH_MODE"] = "disabled"  # whatever another test of this process chose; jobs that join get it too
        os.environ["RAY_MACHINES"] = self.folder  # inherited by every process of these machines
        head = {"num_cpus": head_cpus, "temp_dir": self.folder, "include_dashboard": False, "object_store_memory": MEMORY}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return self.cluster.address

    def add(self, *, cpus: float = 1) -> Any:
        """One more machine."""
        node = self.cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY)
        self.nodes.append(node)
        return node

    def drain(self, node: Any, *, seconds: float) -> None:
        """Tells Ray that the machine will be taken away."""
        accepted, why = GcsClient(address=self.address).drain_node(
            node.node_id,
            autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
            "spot",
            int((time.time() + seconds) * 1000),
        )
        assert accepted, why

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on these machines, found by the folder that only they know."""
        mine = []
        for process in psutil.process_iter():
            try:
                if any(self.folder in part for part in process.cmdline()) or process.environ().get("RAY_MACHINES") == self.folder:
                    mine.append(process)
            except psutil.Error:
                continue
        return mine

    def lose_head(self) -> None:
        """The node with Ray's own state is gone; the others cannot live without it."""
        assert self.cluster.head_node is not None
        self.cluster.remove_node(self.cluster.head_node, allow_graceful=False)

    def kill(self, node: Any) -> None:
        """The machine is gone, with everything on it."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)
