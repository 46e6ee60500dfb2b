"""Saves the run: state copied aside in a moment, written while training goes on, marked last, older ones swept."""

import json
from collections.abc import Callable, Mapping
from functools import partial

import torch

from iddpm_ray import stats
from iddpm_ray.checkpoint import retention
from iddpm_ray.checkpoint.commit import LABELS_FILE, Checkpoint
from iddpm_ray.checkpoint.fence import check_fence
from iddpm_ray.checkpoint.lease import FencedError
from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome
from iddpm_ray.checkpoint.scores import running
from iddpm_ray.errors import TrainError
from iddpm_ray.parallel.collective import Group, all_gather_rows, barrier
from iddpm_ray.sinks.guard import GuardedSinks
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.attempt import say_committed
from iddpm_ray.train.directory import SPEC_FILE, Place
from iddpm_ray.train.kept import STATE_FILE
from iddpm_ray.train.preempt import percentile95
from iddpm_ray.train.resume import STATISTICS
from iddpm_ray.train.session import Session
from iddpm_ray.train.setup import Kit
from iddpm_ray.train.unsaved import Unsaved


class Saver:
    """Starts saves and hears of their end; every rank calls it at the same steps."""

    def __init__(
        self,
        spec: JobSpec,
        kit: Kit,
        place: Place,
        session: Session,
        *,
        statistics: stats.Statistics,
        sink: GuardedSinks,
        group: Group,
        begun: Begun | None = None,
        report: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """Args:
        sink: rows and pictures; committed with each checkpoint, by the rank that marks it.
        group: a CPU group that nothing else uses.
        begun: how this attempt began; recorded again after each commit, with what `report` said when the save began.
        report: how this rank spends its time.
        """
        self._spec, self._kit, self._place, self._session = spec, kit, place, session
        self._statistics, self._sink = statistics, sink
        self._begun, self._ledger = begun, report
        self._spent: Mapping[str, object] = {}
        self._saved_step = kit.state.step if kit.state.step else -1
        self._committing = 0
        self._fence = partial(check_fence, place.url, place.attempt, lease=place.lease)
        batch, rows = spec.train.global_batch, kit.clock.rows_per_epoch
        self._unsaved = Unsaved(spec.checkpoint.max_unsaved, batch, rows, step=kit.state.step, seconds=kit.clock.seconds())
        self._started_seconds = self._unsaved.seconds
        self._leader, self._handed_over = 0, False
        self._save_seconds: list[float] = []
        self._group = group
        self._saver: AsyncSaver | None = self._make(group, asynchronous=spec.checkpoint.asynchronous, after_commit=self._committed)

    @property
    def committed_step(self) -> int:
        """Updates completed in the last checkpoint that this rank has seen committed, or when the attempt began."""
        return self._unsaved.step

    def save_s(self) -> float | None:
        """Seconds that a save takes, 95th percentile; None before the first."""
        return percentile95(self._save_seconds)

    def hand_over(self, group: Group, *, leader: int, member: bool) -> None:
        """From now on some ranks save alone, at once and in the foreground; a save under way is waited for. All ranks call this.

        Args:
            group: of the ranks that save; whatever on the others.
            leader: the first of them, which marks and commits the rows.
            member: whether this rank is one of them; the others go on calling `start` and `settle`.
        """
        self.settle()
        self._leader, self._handed_over = leader, True
        self._sink.hand_over(leads=self._session.rank == leader)
        self._saver = self._make(group, asynchronous=False, after_commit=None) if member else None

    def publish(self) -> None:
        """Writes what rank 0 alone keeps for people, once it has handed the saving to others and everything is saved."""
        if self._session.rank == 0 != self._leader:
            self._sink.commit(self._kit.state.step)

    def settle(self) -> SaveOutcome | None:
        """Waits for the save under way and says how it went; None where there is none, or this rank takes no part.

        Raises:
            FencedError, ConnectionError: as `start`.
        """
        outcome = None if self._saver is None else self._saver.wait()
        self._report(outcome)
        return outcome

    def _make(self, group: Group, *, asynchronous: bool, after_commit: Callable[[Checkpoint], None] | None) -> AsyncSaver:
        return AsyncSaver(
            self._place.url,
            attempt=self._place.attempt,
            group=group,
            spec_digest=self._place.spec_digest,
            asynchronous=asynchronous,
            fence=self._fence,
            before_mark=self._before_mark,
            after_commit=after_commit,
            patience_s=self._spec.checkpoint.save_timeout_s,
        )

    def start(self) -> None:
        """Saves the state as it is after `state.step` updates, once.

        Raises:
            TrainError: the ranks' resamplers have drifted apart, which would draw different timesteps from here on; or saves have failed
                for as long as `checkpoint.max_unsaved` allows, and this one too.
            FencedError: another driver or attempt has taken the run.
            ConnectionError: the ranks lost each other over the save before.
        """
        state, seconds = self._kit.state, self._kit.clock.seconds()
        if state.step == self._saved_step:
            return
        self.settle()
        if not self._handed_over:
            # Rank 0 may still be sweeping, for longer than the training's own group waits.
            barrier(timeout_s=self._spec.checkpoint.save_timeout_s, group=self._group)
        digest = state.resampler.digest().reshape(1)
        last_chance = digest.new_tensor([self._unsaved.too_much(step=state.step, seconds=seconds)])
        said = all_gather_rows(torch.cat([digest, last_chance]))
        digests = said[:, 0]
        if not torch.equal(digests, digests[:1].expand_as(digests)):
            raise TrainError(
                f"step {state.step}: the ranks' loss histories differ",
                value=digests.tolist(),
                fix="resume from the checkpoint before",
            )
        self._spent = self._ledger()
        saved = stats.gather_state(self._statistics, all_gather_rows)
        self._saved_step = self._committing = state.step
        self._started_seconds = seconds
        if self._saver is not None:
            self._saver.start(
                state.step,
                samples_seen=state.step * self._spec.train.global_batch,
                tensors={**state.tensors(), STATISTICS: saved.rows},
                extra_files=self._small_files(saved.labels) if self._session.rank == self._leader else None,
            )
        if said[0, 1] and not self._handed_over:  # rank 0's clock decides for all
            self.settle()
            if self._unsaved.failure is not None:
                raise self._unsaved.error(step=state.step)

    def finish(self) -> None:
        """Saves what is not yet saved and waits for it; a save that failed is tried once more.

        Raises:
            TrainError, FencedError, ConnectionError: as `start`, or the last state could not be saved.
        """
        self.start()
        outcome = self.settle()
        if outcome is not None and not outcome.committed:
            self._saved_step = -1
            self.start()
            outcome = self.settle()
        if self._saver is not None:
            self._saver.close()
        if outcome is not None and not outcome.committed:
            raise TrainError(
                f"the state after step {outcome.step} could not be saved: {outcome.error}",
                fix="make room or mend the storage, and start again",
            )

    def _small_files(self, statistics_labels: list[str]) -> dict[str, bytes]:
        kit = self._kit
        probed = kit.microbatch.origin != "spec"
        state = {
            "step": kit.state.step,
            "trained_seconds": kit.clock.seconds(),
            "conditions": kit.conditions,
            "probe": {"samples": kit.microbatch.samples, "device": kit.conditions["device"], "slice": max(kit.counts)} if probed else None,
            "statistics": statistics_labels,
            "manifest": self._place.manifest_digest,
        }
        return {
            SPEC_FILE: self._place.spec_yaml,
            LABELS_FILE: json.dumps(list(self._place.classes)).encode(),
            STATE_FILE: json.dumps(state, indent=1).encode(),
        }

    def _before_mark(self) -> None:
        """Commits the rows of the checkpoint, on the rank that marks it."""
        self._sink.commit(self._committing)

    def _committed(self, checkpoint: Checkpoint) -> None:
        if self._begun is not None:
            say_committed(self._place, self._begun, conditions=self._kit.conditions, step=checkpoint.step, ledger=self._spent)
        self._sweep()

    def _sweep(self) -> None:
        keep = self._spec.checkpoint
        batch = self._spec.train.global_batch
        every = None if keep.keep_every is None else keep.keep_every.samples(batch, self._kit.clock.rows_per_epoch)
        evaluated = None if self._spec.evaluate.every is None else running(self._place.url)
        swept = retention.sweep(
            self._place.url,
            attempt=self._place.attempt,
            keep_last=keep.keep_last,
            keep_every=every,
            global_batch=batch,
            protected=() if evaluated is None else (evaluated,),
            keep_best=keep.keep_best,
            fence=self._fence,
        )
        for problem in swept.failed:
            self._session.say(f"warning: {problem}; tried again after the next save")

    def _report(self, outcome: SaveOutcome | None) -> None:
        if outcome is None:
            return
        if outcome.fenced:
            raise FencedError(f"checkpoint {outcome.name} was not marked: {outcome.error}")
        if outcome.lost_contact:
            raise ConnectionError(f"checkpoint {outcome.name} was perhaps not saved: {outcome.error}")
        if outcome.committed:
            stats.report0("save_s", outcome.seconds)
            self._save_seconds = [*self._save_seconds[-99:], outcome.seconds]
            self._unsaved.committed(step=outcome.step, seconds=self._started_seconds)
            return
        self._saved_step = -1
        self._unsaved.failed(str(outcome.error))
        limit = self._unsaved.limit
        ends = "" if limit is None else f"; the run ends when {limit} are unsaved (checkpoint.max_unsaved)"
        self._session.say(
            f"WARNING: checkpoint {outcome.name} was NOT saved: {outcome.error}; training goes on, the next save tries again "
            f"(nothing saved since step {self._unsaved.step}){ends}"
        )
