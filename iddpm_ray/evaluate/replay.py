"""A step of a run done again: from the checkpoint before it, in the run's own order, to see what it saw and what came of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iddpm_ray import stats, storage
from iddpm_ray.checkpoint.attempts import Link, attempts, in_lineage, lineage, record_url
from iddpm_ray.checkpoint.commit import SPEC_FILE, Checkpoint, open_checkpoint, read_file, survey
from iddpm_ray.data import manifest as manifests
from iddpm_ray.errors import CheckpointError, SpecError, TrainError
from iddpm_ray.evaluate.replay_begin import begin
from iddpm_ray.parallel.collective import new_gloo_group
from iddpm_ray.sinks.guard import GuardedSinks
from iddpm_ray.sinks.jsonl import attempt_url, read_rows
from iddpm_ray.sinks.rows import Row
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text
from iddpm_ray.train import preview, setup
from iddpm_ray.train.attempt import first_init
from iddpm_ray.train.directory import Place
from iddpm_ray.train.inputs import StepInputs, make_inputs
from iddpm_ray.train.kept import MANIFEST_FILE
from iddpm_ray.train.record import Recorder
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.sources import LocalSources
from iddpm_ray.train.step import StepOutcome, step


@dataclass(frozen=True)
class Plan:
    """Where to begin, and under which conditions the run did the step.

    Attributes:
        step: updates completed after the one to see.
        checkpoint: to begin from; None for the run's beginning.
        attempt: that did the step.
        conditions: as that attempt recorded them; {} if it did not.
        others: attempts that did steps on the way, whose conditions may have been others.
        recorded: the run's row of that step, if it wrote one.
        init: the URL of the weights that the run's beginning took, if it recorded one.
    """

    run_url: str
    step: int
    spec: JobSpec
    checkpoint: Checkpoint | None
    attempt: int
    conditions: Mapping[str, str]
    others: tuple[int, ...]
    recorded: Row | None
    init: str | None = None

    @property
    def world_size(self) -> int:
        """Workers of that attempt."""
        return int(self.conditions.get("workers", "1"))

    def describe(self) -> str:
        """Where it begins, in words."""
        begins = "the run's beginning" if self.checkpoint is None else self.checkpoint.name
        workers = f"{self.world_size} worker{'s' if self.world_size > 1 else ''}"
        return f"step {self.step} of {storage.shown(self.run_url)}, done by attempt {self.attempt} with {workers}: from {begins}"


@dataclass(frozen=True, eq=False)
class Replayed:
    """What one rank saw at the step, and what the step gave; arrays over its own samples [n] unless said otherwise.

    Attributes:
        rows, labels: of the manifest.
        pixels: [n, C, H, W] uint8 as loaded, before any mirroring.
        x_start, noise: [n, C, H, W] float32.
        cond: further inputs of the network.
        t, weights: [G] of the whole global batch.
        loss, mse, vb: [G] by sample; None where the loss has no such term.
        row: numbers of the interval that ends with the step.
        first_nonfinite: the first step on the way whose losses were not all finite.
        error: why the run would have ended there.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    x_start: NDArray[np.float32]
    noise: NDArray[np.float32]
    cond: Mapping[str, NDArray[Any]]
    t: NDArray[np.int64]
    weights: NDArray[np.float32]
    loss: NDArray[np.float32]
    mse: NDArray[np.float32] | None
    vb: NDArray[np.float32] | None
    row: Row
    conditions: Mapping[str, str]
    first_nonfinite: int | None
    error: str | None
    messages: tuple[str, ...] = field(default=())


def plan(run: str, wanted: int) -> Plan:
    """Looks at a run's records; reads no weights.

    Raises:
        CheckpointError: no run, or one that has not come so far.
        SpecError: there is no such step.
    """
    run_url = storage.absolute(run)
    if not storage.exists(storage.join(run_url, SPEC_FILE)):
        raise CheckpointError("no run here", value=storage.shown(run_url), fix="name the directory of a run: {run.output_dir}/{run.name}")
    if wanted < 1:
        raise SpecError("step", value=wanted, fix="steps are counted from 1")
    known = attempts(run_url)
    chain = lineage(known)
    doing = next((link for link in chain if link.from_step < wanted and (link.upto_step is None or wanted <= link.upto_step)), None)
    if doing is None:
        raise CheckpointError("no attempt of this run has begun", value=storage.shown(run_url), fix="train it first")
    record = next(one for one in known if one.number == doing.attempt)
    rows = _rows(run_url, doing)
    _check_reached(run_url, wanted, doing, rows, reached=(record.end or {}).get("reached"))
    start = _start(run_url, chain, wanted)
    if start is None and chain[0].lost:
        record = storage.shown(record_url(run_url, chain[0].attempt))
        raise CheckpointError(
            f"{record} cannot be read: what that attempt began from is not known", fix="restore it, or replay a later step"
        )
    passed = [
        link for link in chain if (link.upto_step is None or link.upto_step > (start.step if start else 0)) and link.from_step < wanted
    ]
    return Plan(
        run_url,
        wanted,
        _spec(run_url, chain, doing, start),
        start,
        doing.attempt,
        record.info.get("conditions", {}),
        tuple(link.attempt for link in passed if link.attempt != doing.attempt),
        next((row for row in rows if row["step"] == wanted), None),
        first_init([one for one in known if one.number == chain[0].attempt]),
    )


def replay_rank(plan: Plan, *, rank: int, world_size: int, device: torch.device) -> Replayed:
    """One rank's part; all ranks of the process group call this with equal plans.

    Raises:
        UserError: the checkpoint or the pictures cannot be read any more.
    """
    spec = plan.spec
    manifest = manifests.read(storage.join(plan.run_url, MANIFEST_FILE))
    session = LocalSession(rank=rank, world_size=world_size, device=device)
    sources = LocalSources.of(spec, manifest, rank=rank, world_size=world_size)
    group = new_gloo_group(timeout_s=spec.cluster.collective_timeout_s)
    statistics = stats.use(stats.Statistics(rank=rank, device=device))
    known = plan.conditions.get("microbatch")
    kit = setup.make(spec, session, sources=sources, known_microbatch=lambda *_: None if known is None else int(known))
    begin(plan.checkpoint, kit, session, init=spec.init, earlier=plan.init, statistics=statistics, group=group)
    place = Place(plan.run_url, plan.attempt, b"", spec.digest(), manifest.digest, manifest.classes, {})
    sink = _Kept()
    recorder = Recorder(spec, kit, place, session, statistics=statistics, sink=GuardedSinks({"rows": lambda: sink}, say=session.say))
    state, clock, batch_size = kit.state, kit.clock, spec.train.global_batch
    first_nonfinite: int | None = None
    error: str | None = None
    seen: tuple[Any, StepInputs, StepOutcome] | None = None
    batches = sources.batches(start_step=state.step, stop_step=plan.step)
    try:
        for batch in batches:
            recorder.loaded(substituted=batch.substituted)
            inputs = make_inputs(
                batch.pixels,
                batch.labels,
                seed=spec.run.seed,
                first_position=state.step * batch_size,
                global_batch=batch_size,
                own=kit.own,
                resampler=state.resampler,
                augmentation=kit.augmentation,
                device=device,
            )
            lr = kit.learning_rate.at(before=state.step * batch_size, after=(state.step + 1) * batch_size)
            outcome = step(state, inputs, lr=lr, word=0, settings=kit.step_settings)
            recorder.observe(outcome)
            if first_nonfinite is None and not bool(torch.isfinite(outcome.loss).all()):
                first_nonfinite = state.step
            due, last = clock.due(state.step), state.step == plan.step
            if due.validate:
                recorder.add(preview.validate(spec, kit, session, sources=sources))
            if last:
                seen = (batch, inputs, outcome)
            if due.row or due.validate or last:
                try:
                    recorder.row(lr=lr)
                except TrainError as trouble:
                    error = error or str(trouble)
    finally:
        batches.close()
    assert seen is not None
    return _result(*seen, kit=kit, sink=sink, session=session, first_nonfinite=first_nonfinite, error=error)


class _Kept:
    """A sink that keeps the last row."""

    def __init__(self) -> None:
        self.last: Row = {}

    def row(self, row: Mapping[str, float | int | str]) -> None:
        self.last = dict(row)

    def picture(self, name: str, step: int, picture: torch.Tensor) -> None:
        """None are drawn."""

    def commit(self, step: int) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is held open."""


def _result(
    batch: Any,
    inputs: StepInputs,
    outcome: StepOutcome,
    *,
    kit: setup.Kit,
    sink: _Kept,
    session: LocalSession,
    first_nonfinite: int | None,
    error: str | None,
) -> Replayed:
    def array(x: torch.Tensor) -> NDArray[Any]:
        return x.detach().cpu().contiguous().numpy()

    return Replayed(
        rows=batch.rows,
        labels=array(batch.labels),
        pixels=array(batch.pixels),
        x_start=array(inputs.x_start),
        noise=array(inputs.noise),
        cond={name: array(value) for name, value in inputs.cond.items()},
        t=array(inputs.t),
        weights=array(inputs.weights),
        loss=array(outcome.loss),
        mse=None if outcome.mse is None else array(outcome.mse),
        vb=None if outcome.vb is None else array(outcome.vb),
        row=sink.last if sink.last.get("step") == kit.state.step else {},
        conditions=kit.conditions,
        first_nonfinite=first_nonfinite,
        error=error,
        messages=tuple(session.messages),
    )


def _rows(run_url: str, link: Link) -> list[Row]:
    url = attempt_url(run_url, link.attempt)
    return [row for row in read_rows(url) if int(row["step"]) > link.from_step] if storage.exists(url) else []


def _check_reached(run_url: str, wanted: int, link: Link, rows: list[Row], *, reached: int | None) -> None:
    """Refuses a step that the run has not done, as far as anybody knows how far it came."""
    if link.upto_step is not None:
        return
    stored = [one.checkpoint.step for one in survey(run_url) if one.checkpoint.attempt == link.attempt]
    furthest = max(link.from_step, *stored, *(int(row["step"]) for row in rows), reached or 0)
    if wanted <= furthest:
        return
    if reached is not None:
        raise CheckpointError("the run has no such step", value=wanted, fix=f"it has come to step {furthest}")
    # Nobody has said how far the attempt came: it goes on, or died. What it did or will do is known as far as its duration goes.
    spec = load_text(storage.read_bytes(storage.join(run_url, SPEC_FILE)).decode())
    if spec.train.duration.unit == "minutes":
        return
    num_rows = len(manifests.read(storage.join(run_url, MANIFEST_FILE)).training_rows)
    last = math.ceil(spec.train.duration.samples(spec.train.global_batch, num_rows) / spec.train.global_batch)
    if wanted > last:
        raise CheckpointError("the run has no such step", value=wanted, fix=f"it ends at step {last}")


def _start(run_url: str, chain: list[Link], wanted: int) -> Checkpoint | None:
    """The newest complete checkpoint of the run before the step."""
    usable = [
        one.checkpoint
        for one in survey(run_url)
        if one.marked and one.checkpoint.step < wanted and in_lineage(chain, step=one.checkpoint.step, attempt=one.checkpoint.attempt)
    ]
    return max(usable, key=lambda checkpoint: checkpoint.step, default=None)


def _spec(run_url: str, chain: list[Link], doing: Link, start: Checkpoint | None) -> JobSpec:
    """The spec that the attempt had: inside a checkpoint of its own, or the run's if it is the newest, or the nearest there is."""
    own = [one.checkpoint for one in survey(run_url) if one.marked and one.checkpoint.attempt == doing.attempt]
    nearest = own[0] if own else None if doing is chain[-1] else start
    if nearest is None:
        return load_text(storage.read_bytes(storage.join(run_url, SPEC_FILE)).decode())
    checkpoint, marker = open_checkpoint(nearest.url)
    return load_text(read_file(checkpoint, SPEC_FILE, marker=marker).decode())
