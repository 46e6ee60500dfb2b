"""What the books of a rank's seconds cost: the ledger's calls of one step, as a part of that step, alone and while another thread asks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from cases import Case, on_cpu, on_gpu
from our_step import OurTrainer
from timing import Comparison, Effort, by_turns, timed

from iddpm_ray.train.ledger import Ledger

PHASES = ("data", "inputs", "forward", "backward", "update")


def results(effort: Effort) -> list[Comparison]:
    """For each network the part of a step that the ledger takes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return [
        result for case in (on_cpu(effort) if device.type == "cpu" else on_gpu()) for result in _shares(case, device=device, effort=effort)
    ]


def _shares(case: Case, *, device: torch.device, effort: Effort) -> list[Comparison]:
    sync: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    trainer = OurTrainer(case.spec, device=device)
    pixels, labels = case.batch()
    ledger = Ledger()

    def book() -> None:
        for name in PHASES:
            ledger.phase(name)
        ledger.stepped(1)

    def asked() -> float:
        with _asking(ledger):
            return timed(book, calls=1000)

    ways: dict[str, Callable[[], float]] = {
        "ledger": lambda: timed(book, calls=1000),
        "ledger, asked a hundred times a second": asked,
        "step": lambda: timed(lambda: trainer.step(pixels, labels), calls=case.calls, sync=sync),
    }
    times = by_turns(ways, repeats=effort.of(9))
    return [
        Comparison(f"share of a step: {name}, {case.name}", times[name], times["step"], "ledger", "whole step", at_most=0.001)
        for name in ways
        if name != "step"
    ]


@contextmanager
def _asking(ledger: Ledger) -> Iterator[None]:
    """Another thread that asks far more often than a cluster does."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.01):
            ledger.report()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
