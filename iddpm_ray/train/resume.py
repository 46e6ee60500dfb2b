"""Where an attempt begins: the newest checkpoint that every rank can read, else `init.from`, else the seed; never in silence."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from iddpm_ray import stats, storage
from iddpm_ray.checkpoint import attempts
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import LABELS_FILE, SPEC_FILE, read_file
from iddpm_ray.checkpoint.index import StoredTensor
from iddpm_ray.checkpoint.restore import restore_newest
from iddpm_ray.errors import CheckpointError
from iddpm_ray.parallel.collective import Group, broadcast_bytes
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.spec.init import InitSpec
from iddpm_ray.spec.text import load_text
from iddpm_ray.stats.saved import SavedStatistics
from iddpm_ray.train.attempt import first_init, say_begun
from iddpm_ray.train.begin import begin_from
from iddpm_ray.train.conditions import arithmetic, changed, differing
from iddpm_ray.train.directory import Place
from iddpm_ray.train.kept import STATE_FILE
from iddpm_ray.train.session import Session
from iddpm_ray.train.setup import Kit

STATISTICS = "statistics.rows"


def restore(kit: Kit, place: Place, session: Session, *, init: InitSpec, statistics: stats.Statistics, group: Group) -> list[Begun]:
    """Fills the state, says where it came from, and records it before anything is computed. A collective.

    Returns:
        How this attempt and those before it began, this one last.

    Raises:
        CheckpointError: there are checkpoints but none can be read, or the newest is of a later version.
        UserError: the weights of `init.from` cannot be had.
    """
    live = kit.state.tensors()

    def allocate(stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
        rows = stored.get(STATISTICS)
        return live if rows is None else live | {STATISTICS: torch.empty(rows.shape, dtype=rows.dtype)}

    files = (STATE_FILE, SPEC_FILE, LABELS_FILE)
    restored = restore_newest(place.url, allocate=allocate, spec_digest=place.spec_digest, files=files, group=group)
    for reason in restored.rejected:
        session.say(f"warning: {reason}; going back to the checkpoint before it")
    begun = Begun(place.attempt)
    if restored.checkpoint is None:
        if init.from_ is None:
            session.say("starting fresh")
        else:
            earlier = first_init(attempts.attempts(place.url)) if session.rank == 0 else None
            source = begin_from(init, kit.state, earlier=earlier, group=group)
            begun = Begun(place.attempt, init=source.url)
            session.say(f"starting fresh, weights from {source.words}")
    else:
        begun = Begun(place.attempt, restored.checkpoint.step, restored.checkpoint.attempt)
        state = json.loads(restored.files[STATE_FILE])
        kit.state.restore(dict(restored.tensors), step=restored.checkpoint.step)
        kit.clock.trained_seconds = state["trained_seconds"]
        saved = SavedStatistics(state["statistics"], restored.tensors[STATISTICS])
        stats.load_state(statistics, saved, world_size=session.world_size)
        where = f"{storage.shown(place.url)} from {restored.checkpoint.name} (attempt {place.attempt})"
        session.say(f"resuming step {restored.checkpoint.step} of {where}")
        difference = changed(state["conditions"], kit.conditions)
        if difference is not None:
            session.say(difference)
    if session.rank == 0:
        say_begun(place, begun, conditions=kit.conditions)
    return [*_earlier(place), begun]


def known_microbatch(place: Place, session: Session, *, device: str, slice_samples: int, group: Group) -> int | None:
    """What an earlier attempt found by probing, if device, slice and arithmetic are the same; says what is not. A collective."""
    said = b"null"
    if session.rank == 0:
        try:
            choice = newest_readable(place.url, files=(STATE_FILE,))
            if choice.checkpoint is not None and choice.marker is not None:
                said = read_file(choice.checkpoint, STATE_FILE, marker=choice.marker)
        except CheckpointError:
            pass  # said when the state is restored, a moment later
    state: dict[str, Any] | None = json.loads(broadcast_bytes(said, group=group))
    if state is None or state.get("probe") is None:
        return None
    probe, settings = state["probe"], arithmetic(load_text(place.spec_yaml.decode()))
    then = {name: state["conditions"].get(name, "unknown") for name in settings}
    before = {"slice": str(probe["slice"]), "device": probe["device"], **then}
    differences = differing(before, {"slice": str(slice_samples), "device": device, **settings})
    if not differences:
        return probe["samples"]
    session.say(f"microbatch: found anew, since {'; '.join(differences)}")
    return None


def _earlier(place: Place) -> list[Begun]:
    known = attempts.attempts(place.url)
    return [Begun(one.number, one.from_step, one.from_attempt) for one in known if one.began and one.number < place.attempt]
