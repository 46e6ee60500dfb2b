"""Turns what steps leave on the device into rows of numbers, at intervals, and hands them to the sinks."""

import math
import resource
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from iddpm_ray import stats, storage
from iddpm_ray.errors import TrainError
from iddpm_ray.parallel.collective import all_gather_rows
from iddpm_ray.sinks.guard import GuardedSinks, keep_rows, open_sinks
from iddpm_ray.sinks.pictures import sheet
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.stats.loss_terms import report_loss_terms
from iddpm_ray.train.directory import Place
from iddpm_ray.train.session import Session
from iddpm_ray.train.setup import Kit
from iddpm_ray.train.step import StepOutcome

SUBSTITUTED = "substituted_pictures"


def open_sink(spec: JobSpec, place: Place, session: Session, *, lineage: list[Begun]) -> GuardedSinks:
    """Where rows and pictures go on rank 0; the others keep the rows, in case that rank 0 is taken away."""
    if session.rank != 0:
        return keep_rows(place.url, attempt=place.attempt, lineage=lineage, say=session.say)
    return open_sinks(
        place.url,
        attempt=place.attempt,
        lineage=lineage,
        log=spec.log,
        name=spec.run.name,
        config=spec.model_dump(mode="json", by_alias=True),
        say=session.say,
    )


class Recorder:
    """Books every step without waiting for the device; at a row, reads, checks the health of the run, and writes."""

    def __init__(
        self, spec: JobSpec, kit: Kit, place: Place, session: Session, *, statistics: stats.Statistics, sink: GuardedSinks
    ) -> None:
        self._collector = stats.Collector(statistics=statistics)
        self._spec, self._kit, self._place, self._session = spec, kit, place, session
        self._sink = sink
        self._since = (time.monotonic(), kit.state.step)
        self._extra: dict[str, float] = {}

    def waited(self, seconds: float) -> None:
        """The host waited that long for pictures."""
        stats.report("data_wait_s", seconds)

    def spent(self, seconds: Mapping[str, float]) -> None:
        """What the ledger booked since the last row on this rank; a row shows the mean of all ranks."""
        for name, value in seconds.items():
            stats.report(f"time_{name}_s", value)

    def loaded(self, *, substituted: int) -> None:
        """Books how many pictures of this rank's batch could not be read and were replaced."""
        if self._spec.data.on_error == "substitute":
            stats.report(SUBSTITUTED, float(substituted))

    def observe(self, outcome: StepOutcome) -> None:
        """Books one step; every rank holds the whole global batch, so rank 0 alone counts it."""
        report_loss_terms(
            outcome.t,
            loss=outcome.loss,
            weights=outcome.weights,
            mse=outcome.mse,
            vb=outcome.vb,
            num_timesteps=self._kit.state.diffusion.num_timesteps,
            num_bins=self._spec.log.timestep_bins,
        )
        stats.report0("grad_norm", outcome.update.grad_norm)

    def add(self, values: Mapping[str, float]) -> None:
        """Numbers for the next row, equal on all ranks."""
        self._extra |= values

    def row(self, *, lr: float) -> None:
        """Reads the interval, judges it, and writes a row.

        Raises:
            TrainError: after `optim.max_nonfinite_steps` skipped steps in a row.
        """
        state = self._kit.state
        stats.report("memory_gib", _memory_gib(self._session.device))
        self._collector.update(all_gather_rows)
        self._judge()
        now, step = time.monotonic(), state.step
        seconds, steps = now - self._since[0], step - self._since[1]
        self._since = (now, step)
        global_batch = self._spec.train.global_batch
        row: dict[str, float | int] = {"step": step, "samples": step * global_batch}
        row |= self._collector.means()
        if SUBSTITUTED in row:  # a count of the interval over all ranks
            row[SUBSTITUTED] = round(row[SUBSTITUTED] * self._collector.num(SUBSTITUTED))
        row |= self._extra | _productive_share(row)
        row["param_norm"] = float(torch.nn.utils.get_total_norm(list(state.model.parameters())))
        row["lr"] = lr
        if state.scale.log2 is not None:
            row["lg_loss_scale"] = float(state.scale.log2)
        row["skipped_steps"] = int(state.health.skipped)
        row["images_per_second"] = steps * global_batch / max(seconds, 1e-9)
        row["attempt"] = self._place.attempt
        row["time"] = time.time()
        self._extra = {}
        self._sink.row(row)
        if self._session.rank == 0:
            self._session.progress(row)

    def pictures(self, name: str, pictures: Tensor) -> None:
        """Pictures [N, C, H, W] uint8, equal on all ranks, shown as one grid."""
        if self._session.rank == 0:
            self._sink.picture(name, self._kit.state.step, sheet(pictures, columns=math.ceil(math.sqrt(len(pictures)))))

    def close(self) -> None:
        """Ends the sinks."""
        self._sink.close()

    def _judge(self) -> None:
        health = self._kit.state.health
        bad = health.nonfinite.nonzero().flatten().tolist()
        if bad:
            shown = ", ".join(str(t) for t in bad[:8]) + (" ..." if len(bad) > 8 else "")
            self._session.say(
                f"step {self._kit.state.step}: non-finite losses at timesteps {shown}; {int(health.skipped)} steps skipped so far; "
                f"{self._replay()} shows the samples"
            )
            health.nonfinite.zero_()
        streak, most = int(health.streak), self._spec.optim.max_nonfinite_steps
        if streak >= most:
            raise TrainError(
                f"{streak} steps in a row had non-finite gradients, up to step {self._kit.state.step}"
                + (f"; non-finite losses at timesteps {bad[:8]}" if bad else ""),
                fix="a smaller optim.lr, optim.clip_norm, or optim.precision float32; optim.max_nonfinite_steps sets how many are borne; "
                f"{self._replay(back=streak - 1)} shows what the first of them saw",
            )

    def _replay(self, *, back: int = 0) -> str:
        """The command that does a step again."""
        return f"python jobs/replay.py {storage.shown(self._place.url)} step={self._kit.state.step - back}"


def _productive_share(row: Mapping[str, float | int]) -> dict[str, float]:
    """The part of the interval in which steps were computed, out of what the ledger booked."""
    seconds = {name: float(value) for name, value in row.items() if name.startswith("time_")}
    total = sum(seconds.values())
    return {"productive_share": seconds["time_productive_s"] / total} if total else {}


def _memory_gib(device: torch.device) -> float:
    """Peak memory of this process: of the GPU where there is one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
