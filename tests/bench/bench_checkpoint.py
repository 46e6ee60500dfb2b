"""What a save costs training, and how fast a state is written and read, against torch.save and torch.distributed.checkpoint."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as torch_dcp
from cases import on_cpu
from our_step import OurTrainer
from timing import Comparison, Effort, by_turns, timed
from torch import Tensor

from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome


def results(effort: Effort) -> list[Comparison]:
    """A state of weights, both moments and one average, one process, local disk."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    case = on_cpu(effort)[-1]
    ours = OurTrainer(case.spec, device=device)
    pixels, labels = case.batch()
    tensors = ours.kit.state.tensors()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        store = _Store(Path(name), tensors)
        steps = effort.of(4, quick=1)
        ways: dict[str, Callable[[], float]] = {
            "step": lambda: timed(lambda: ours.step(pixels, labels)),
            "stall": store.stall,
            "steps": lambda: timed(lambda: ours.step(pixels, labels), calls=steps) * steps,
            "steps and save": lambda: store.steps_and_save(lambda: ours.step(pixels, labels), calls=steps),
            "save": store.save,
            "torch.save": store.torch_save,
            "DCP save": store.dcp_save,
            "load": store.load,
            "torch.load": store.torch_load,
            "DCP load": store.dcp_load,
        }
        times = by_turns(ways, repeats=effort.of(5))
        store.close()
    size = sum(tensor.nbytes for tensor in tensors.values())
    about = f"{size / 2**20:.0f} MiB"

    def against(what: str, one: str, ours_label: str, other: str, peer_label: str, note: str = "") -> Comparison:
        return Comparison(f"{what}, {about}", times[one], times[other], ours_label=ours_label, peer_label=peer_label, note=note)

    def rate(name: str) -> str:
        return f"{size / 2**30 / sorted(times[name])[len(times[name]) // 2]:.2f} GiB/s"

    speeds = f"{rate('save')}, torch.save {rate('torch.save')}, DCP {rate('DCP save')}; ours also makes a checksum of every piece"
    reads = (
        f"{rate('load')}, torch.load {rate('torch.load')}, DCP {rate('DCP load')}; ours also compares every checksum; files just written"
    )
    delay = f"{steps} steps with a save begun before them, until they are done; the writing itself may go on"
    return [
        against(
            "stall of a save",
            "stall",
            "copy to host memory",
            "torch.save",
            "torch.save",
            "training waits so long; writing goes on beside it",
        ),
        against("stall of a save, in steps", "stall", "copy to host memory", "step", "one step of that network"),
        against("steps while a save is written", "steps and save", "with a save", "steps", "without", delay),
        against("save, to the marker", "save", "ours", "torch.save", "torch.save", speeds),
        against("save, to the marker, DCP", "save", "ours", "DCP save", "torch.distributed.checkpoint", speeds),
        against("load", "load", "ours", "torch.load", "torch.load", reads),
        against("load, DCP", "load", "ours", "DCP load", "torch.distributed.checkpoint", reads),
    ]


def _check(outcome: SaveOutcome | None) -> None:
    if outcome is None or not outcome.committed:
        raise RuntimeError(f"nothing was saved: {outcome}")


class _Store:
    """A directory where the state is saved in every way, each a few times; every timing leaves room for the next."""

    def __init__(self, root: Path, tensors: dict[str, Tensor]) -> None:
        self._root, self._tensors = root, tensors
        self._into = {name: torch.empty_like(tensor, device="cpu") for name, tensor in tensors.items()}
        self._saver = AsyncSaver(str(root / "run"), attempt=1, group=None, spec_digest="bench")
        self._step = 0
        self.save(keep=True)
        self._kept = next((root / "run" / "checkpoints").iterdir())
        self.torch_save()
        self.dcp_save()

    def stall(self) -> float:
        """Until training may go on."""
        seconds = timed(self._start)
        self._finish()
        return seconds

    def steps_and_save(self, step: Callable[[], object], *, calls: int) -> float:
        """Some steps, with a save begun before them."""

        def both() -> None:
            self._start()
            for _ in range(calls):
                step()

        seconds = timed(both)
        self._finish()
        return seconds

    def save(self, *, keep: bool = False) -> float:
        """Until the checkpoint is marked."""

        def whole() -> None:
            self._start()
            outcome = self._saver.wait()
            _check(outcome)

        seconds = timed(whole)
        if not keep:
            self._clear()
        return seconds

    def load(self) -> float:
        return timed(lambda: load(str(self._kept), into=self._into))

    def torch_save(self) -> float:
        return timed(lambda: torch.save(self._tensors, self._root / "plain.pt"))

    def torch_load(self) -> float:
        def read() -> None:
            for name, tensor in torch.load(self._root / "plain.pt", map_location="cpu", weights_only=True).items():
                self._into[name].copy_(tensor)

        return timed(read)

    def dcp_save(self) -> float:
        shutil.rmtree(self._root / "dcp", ignore_errors=True)
        return timed(lambda: torch_dcp.save(dict(self._tensors), checkpoint_id=self._root / "dcp", no_dist=True))

    def dcp_load(self) -> float:
        return timed(lambda: torch_dcp.load(dict(self._into), checkpoint_id=self._root / "dcp", no_dist=True))

    def close(self) -> None:
        self._saver.close()

    def _start(self) -> None:
        self._step += 1
        self._saver.start(self._step, samples_seen=self._step, tensors=self._tensors)

    def _finish(self) -> None:
        outcome = self._saver.wait()
        _check(outcome)
        self._clear()

    def _clear(self) -> None:
        for path in (self._root / "run" / "checkpoints").iterdir():
            if path != self._kept:
                shutil.rmtree(path)
