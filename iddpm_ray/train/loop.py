"""The whole run on one page."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray import stats
from iddpm_ray.parallel.collective import new_gloo_group
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train import preview, setup
from iddpm_ray.train.directory import Place
from iddpm_ray.train.inputs import make_inputs
from iddpm_ray.train.record import Recorder, open_sink
from iddpm_ray.train.resume import known_microbatch, restore
from iddpm_ray.train.save import Saver
from iddpm_ray.train.session import Session, Wish
from iddpm_ray.train.sources import Sources
from iddpm_ray.train.step import step


@dataclass(frozen=True)
class Outcome:
    """How the loop ended: `finished` or `stopped`, after how many updates; `notes` are for people."""

    why: str
    step: int


def train(spec: JobSpec, session: Session, *, sources: Sources, place: Place) -> Outcome:
    """Trains from the newest checkpoint (or the seed) until the duration is over or somebody wishes a stop.

    Every rank calls this with equal arguments and makes the same collectives in the same order.
    """
    session.phase("build")
    group = new_gloo_group(timeout_s=spec.cluster.collective_timeout_s)
    statistics = stats.use(stats.Statistics(rank=session.rank, device=session.device))
    kit = setup.make(
        spec,
        session,
        sources=sources,
        known_microbatch=lambda device, slice_samples: known_microbatch(
            place, session, device=device, slice_samples=slice_samples, group=group
        ),
    )
    state, clock = kit.state, kit.clock
    session.phase("load")
    lineage = restore(kit, place, session, init=spec.init, statistics=statistics, group=group)
    sink = open_sink(spec, place, session, lineage=lineage)
    recorder = Recorder(spec, kit, place, session, statistics=statistics, sink=sink)
    saver = Saver(spec, kit, place, session, statistics=statistics, sink=sink, group=group)
    batches = sources.batches(start_step=state.step, stop_step=clock.total_steps())
    words: Tensor | None = None
    wishes, due_done = Wish.NONE, state.step == clock.total_steps()
    session.phase("first step")
    try:
        while not due_done and Wish.STOP not in wishes:
            session.phase("data")
            asked = time.monotonic()
            batch = next(batches)
            recorder.waited(time.monotonic() - asked)
            recorder.loaded(substituted=batch.substituted)
            inputs = make_inputs(
                batch.pixels,
                batch.labels,
                seed=spec.run.seed,
                first_position=state.step * spec.train.global_batch,
                global_batch=spec.train.global_batch,
                own=kit.own,
                resampler=state.resampler,
                augmentation=kit.augmentation,
                device=session.device,
            )
            wish = session.wish() | (Wish.STOP if clock.time_is_up() else Wish.NONE) | (Wish.SAVE if clock.time_to_save() else Wish.NONE)
            lr = kit.learning_rate.at(before=state.step * spec.train.global_batch, after=(state.step + 1) * spec.train.global_batch)
            outcome = step(state, inputs, lr=lr, word=int(wish), settings=kit.step_settings)
            recorder.observe(outcome)
            wishes = late_read(words)
            words = outcome.words
            due = clock.due(state.step)
            if due.validate:
                session.phase("validate")
                recorder.add(preview.validate(spec, kit, session, sources=sources))
            if due.row or due.validate:
                session.phase("row")
                recorder.row(lr=lr)
            if due.sample:
                session.phase("sample")
                recorder.pictures("samples", preview.draw(spec, kit, session, sources=sources))
            if due.save or Wish.SAVE in wishes:
                session.phase("save")
                saver.start()
            due_done = due.done
    finally:
        batches.close()
    session.phase("stop")
    saver.finish()
    recorder.close()
    return Outcome("finished" if due_done or clock.time_is_up() else "stopped", state.step)


def late_read(words: Tensor | None) -> Wish:
    """The only place where the host reads what a step left on the device: the wishes of the step before, long since there."""
    if words is None:
        return Wish.NONE
    wishes = Wish.NONE
    for word in words.to("cpu", non_blocking=False).to(torch.int64).tolist():
        wishes |= Wish(word)
    return wishes
