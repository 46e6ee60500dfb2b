"""Saves the run: state copied aside in a moment, written while training goes on, marked last, older ones swept."""

import json

import torch

from iddpm_ray import stats
from iddpm_ray.checkpoint import retention
from iddpm_ray.checkpoint.commit import Checkpoint
from iddpm_ray.checkpoint.saver import AsyncSaver, SaveOutcome
from iddpm_ray.errors import TrainError
from iddpm_ray.parallel.collective import Group, all_gather_rows
from iddpm_ray.sinks.rows import Sink
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import LABELS_FILE, SPEC_FILE, Place
from iddpm_ray.train.resume import STATE_FILE, STATISTICS
from iddpm_ray.train.session import Session
from iddpm_ray.train.setup import Kit


class Saver:
    """Starts saves and hears of their end; every rank calls it at the same steps."""

    def __init__(
        self, spec: JobSpec, kit: Kit, place: Place, session: Session, *, statistics: stats.Statistics, sink: Sink | None, group: Group
    ) -> None:
        """Args:
        sink: rows and pictures, on rank 0 alone; committed with each checkpoint.
        group: a CPU group that nothing else uses.
        """
        self._spec, self._kit, self._place, self._session = spec, kit, place, session
        self._statistics, self._sink = statistics, sink
        self._saved_step = kit.state.step if kit.state.step else -1
        self._committing = 0
        self._saver = AsyncSaver(
            place.url,
            attempt=place.attempt,
            group=group,
            spec_digest=place.spec_digest,
            asynchronous=spec.checkpoint.asynchronous,
            before_mark=self._commit_rows,
            after_commit=self._sweep,
        )

    def start(self) -> None:
        """Saves the state as it is after `state.step` updates, once.

        Raises:
            TrainError: if the ranks' resamplers have drifted apart, which would draw different timesteps from here on.
        """
        state = self._kit.state
        if state.step == self._saved_step:
            return
        self._report(self._saver.wait())
        digests = all_gather_rows(state.resampler.digest().reshape(1))
        if not torch.equal(digests, digests[:1].expand_as(digests)):
            raise TrainError(
                f"step {state.step}: the ranks' loss histories differ",
                value=digests.flatten().tolist(),
                fix="resume from the checkpoint before",
            )
        saved = stats.gather_state(self._statistics, all_gather_rows)
        self._saved_step = self._committing = state.step
        self._report(
            self._saver.start(
                state.step,
                samples_seen=state.step * self._spec.train.global_batch,
                tensors={**state.tensors(), STATISTICS: saved.rows},
                extra_files=self._small_files(saved.labels) if self._session.rank == 0 else None,
            )
        )

    def finish(self) -> None:
        """Saves what is not yet saved and waits for it; a save that failed is tried once more.

        Raises:
            TrainError: if the last state could not be saved.
        """
        self.start()
        outcome = self._saver.wait()
        self._report(outcome)
        if outcome is not None and not outcome.committed and not outcome.lost_contact:
            self._saved_step = -1
            self.start()
            outcome = self._saver.wait()
            self._report(outcome)
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

    def _commit_rows(self) -> None:
        if self._sink is not None:
            self._sink.commit(self._committing)

    def _sweep(self, checkpoint: Checkpoint) -> None:
        keep = self._spec.checkpoint
        batch = self._spec.train.global_batch
        every = None if keep.keep_every is None else keep.keep_every.samples(batch, self._kit.clock.rows_per_epoch)
        swept = retention.sweep(
            self._place.url, attempt=self._place.attempt, keep_last=keep.keep_last, keep_every=every, global_batch=batch
        )
        for problem in swept.failed:
            self._session.say(f"warning: {problem}; tried again after the next save")

    def _report(self, outcome: SaveOutcome | None) -> None:
        if outcome is None:
            return
        if outcome.committed:
            stats.report0("save_s", outcome.seconds)
        else:
            self._session.say(
                f"WARNING: checkpoint {outcome.name} was NOT saved: {outcome.error}; training goes on, the next save tries again"
            )
            self._saved_step = -1
