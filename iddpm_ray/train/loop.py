"""The whole run on one page."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from iddpm_ray import stats
from iddpm_ray.parallel.collective import new_gloo_group
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train import preview, setup
from iddpm_ray.train.compiled import CompiledCode
from iddpm_ray.train.directory import Place
from iddpm_ray.train.evacuate import Evacuation
from iddpm_ray.train.inputs import make_inputs
from iddpm_ray.train.ledger import Ledger
from iddpm_ray.train.record import Recorder, open_sink
from iddpm_ray.train.resume import known_microbatch, restore
from iddpm_ray.train.save import Saver
from iddpm_ray.train.session import Session, Wish
from iddpm_ray.train.sources import Sources
from iddpm_ray.train.step import step


@dataclass(frozen=True)
class Outcome:
    """How the loop ended, after how many updates.

    Attributes:
        why: `finished`; `stopped`, by a wish; `preempted`, before a deadline; `grown`, to make room for a larger attempt.
    """

    why: str
    step: int


def train(spec: JobSpec, session: Session, *, sources: Sources, place: Place) -> Outcome:
    """Trains from the newest checkpoint (or the seed) until the duration is over or somebody wishes a stop.

    Every rank calls this with equal arguments and makes the same collectives in the same order.
    """
    ledger = Ledger(session.phase)
    session.follow(ledger.report)
    ledger.phase("build")
    group = new_gloo_group(timeout_s=spec.cluster.collective_timeout_s)
    statistics = stats.use(stats.Statistics(rank=session.rank, device=session.device))
    compiled = CompiledCode.of(spec, place.url, device=session.device)
    if compiled is not None and compiled.take():
        session.say("compiled code is there from an earlier start")
    kit = setup.make(
        spec,
        session,
        sources=sources,
        known_microbatch=lambda device, slice_samples: known_microbatch(
            place, session, device=device, slice_samples=slice_samples, group=group
        ),
        phase=ledger.phase,
    )
    state, clock = kit.state, kit.clock
    ledger.phase("load")
    lineage = restore(kit, place, session, init=spec.init, statistics=statistics, group=group)
    sink = open_sink(spec, place, session, lineage=lineage)
    recorder = Recorder(spec, kit, place, session, statistics=statistics, sink=sink)
    # A slow store is no lost rank.
    saving = new_gloo_group(timeout_s=max(spec.cluster.collective_timeout_s, spec.checkpoint.save_timeout_s))
    saver = Saver(spec, kit, place, session, statistics=statistics, sink=sink, group=saving, begun=lineage[-1], report=ledger.report)
    batches = sources.batches(start_step=state.step, stop_step=clock.total_steps())
    words: Words | None = None
    evacuation: Evacuation | None = None
    wishes, due_done = Wish.NONE, clock.is_over(state.step)
    if state.step and not due_done and clock.due(state.step).sample and preview.is_owed(place.url, session, step=state.step, group=group):
        ledger.phase("sample")
        recorder.pictures(preview.GRID, preview.draw(spec, kit, session, sources=sources))
    ledger.phase("first step")
    try:
        while not due_done and not wishes & (Wish.STOP | Wish.LEAVE):
            ledger.phase("data")
            asked = time.monotonic()
            batch = next(batches)
            assert (batch.step, batch.rank) == (state.step, session.rank)
            recorder.waited(time.monotonic() - asked)
            recorder.loaded(substituted=batch.substituted)
            ledger.phase("inputs")
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
            wish = session.wish() | (clock.wishes() if session.rank == 0 else Wish.NONE)
            lr = kit.learning_rate.at(before=state.step * spec.train.global_batch, after=(state.step + 1) * spec.train.global_batch)
            outcome = step(state, inputs, lr=lr, word=int(wish), settings=kit.step_settings)
            ledger.stepped(state.step)
            if compiled is not None and session.rank == 0:
                compiled.keep()
            recorder.observe(outcome)
            wishes = late_read(words)
            words = Words.sent(outcome.words)
            due = clock.due(state.step)
            if due.validate or due.row or due.sample or due.save or Wish.SAVE in wishes:
                catch_up(session.device)
            if due.validate:
                ledger.phase("validate")
                recorder.add(preview.validate(spec, kit, session, sources=sources))
            if due.row or due.validate:
                ledger.phase("row")
                recorder.spent(ledger.interval())
                recorder.row(lr=lr)
            over = bool(wishes & (Wish.STOP | Wish.LEAVE))
            if Wish.LOOK in wishes and (notice := session.notice()) is not None and (evacuation is None or evacuation.is_news(notice)):
                ledger.phase("save")
                timeout_s = spec.cluster.collective_timeout_s
                evacuation = Evacuation.begin(notice, session=session, saver=saver, step_s=ledger.step_s(), timeout_s=timeout_s)
            if evacuation is not None:
                ledger.phase("save")
                soon = clock.due(state.step + 1)  # nobody knows how long a validation or a grid of pictures takes
                last = due.done or over or soon.validate or soon.sample
                if evacuation.over(state.step, save=due.save or Wish.SAVE in wishes, last=last):
                    break
                continue
            if due.sample:
                ledger.phase("sample")
                recorder.pictures(preview.GRID, preview.draw(spec, kit, session, sources=sources))
            if due.save or Wish.SAVE in wishes:
                ledger.phase("save")
                saver.start()
            due_done = due.done
        ledger.phase("stop")
        if evacuation is None:
            saver.finish()
        else:
            saver.publish()
    finally:
        batches.close()
    recorder.close()
    if evacuation is not None:
        return Outcome("preempted", state.step)
    if due_done or clock.time_is_up():
        return Outcome("finished", state.step)
    return Outcome("grown" if Wish.LEAVE in wishes and Wish.STOP not in wishes else "stopped", state.step)


def catch_up(device: torch.device) -> None:
    """Waits for the step that the device still computes, so that the ledger books its time to the step and not to what comes next."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Words:
    """The ranks' wishes of a step, on their way from the device to the host.

    Attributes:
        there: set on the device's queue right behind the copy; None where the words are on the host already.
    """

    values: Tensor
    there: torch.cuda.Event | None

    @classmethod
    def sent(cls, words: Tensor) -> "Words":
        """Sets a copy going; waits for nothing."""
        if words.device.type != "cuda":
            return cls(words, None)
        host = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
        host.copy_(words, non_blocking=True)
        there = torch.cuda.Event()
        there.record()
        return cls(host, there)


def late_read(words: Words | None) -> Wish:
    """The only place where the host waits for what a step left on the device: the wishes of the step before the one now computed."""
    if words is None:
        return Wish.NONE
    if words.there is not None:
        words.there.synchronize()
    wishes = Wish.NONE
    for word in words.values.to(torch.int64).tolist():
        wishes |= Wish(word)
    return wishes
