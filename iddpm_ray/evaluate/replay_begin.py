"""Puts a chosen checkpoint of a run, or its beginning, into a fresh state."""

import json

import torch

from iddpm_ray import stats, storage
from iddpm_ray.checkpoint.commit import Checkpoint, open_checkpoint, read_file
from iddpm_ray.checkpoint.dcp import load
from iddpm_ray.checkpoint.index import read_index
from iddpm_ray.errors import CheckpointError
from iddpm_ray.parallel.collective import Group
from iddpm_ray.spec.init import InitSpec
from iddpm_ray.stats.saved import SavedStatistics
from iddpm_ray.train.begin import begin_from
from iddpm_ray.train.kept import STATE_FILE
from iddpm_ray.train.resume import STATISTICS
from iddpm_ray.train.session import LocalSession
from iddpm_ray.train.setup import Kit


def begin(
    checkpoint: Checkpoint | None,
    kit: Kit,
    session: LocalSession,
    *,
    init: InitSpec,
    earlier: str | None,
    statistics: stats.Statistics,
    group: Group,
) -> None:
    """Fills the state as a start of the run would from exactly that checkpoint; None for the run's beginning. A collective.

    Args:
        earlier: the URL of the weights that the run began from, where it recorded one.

    Raises:
        UserError: it cannot be read.
    """
    if checkpoint is None:
        if init.from_ is not None:
            source = begin_from(init, kit.state, earlier=earlier, group=group)
            if earlier is not None and source.url != earlier:
                fix = "replay a step after a checkpoint of the run's own"
                raise CheckpointError("the weights that the run began from are gone", value=storage.shown(earlier), fix=fix)
        return
    found, marker = open_checkpoint(checkpoint.url)
    rows = read_index(found, marker)[STATISTICS]
    tensors = {**kit.state.tensors(), STATISTICS: torch.empty(rows.shape, dtype=rows.dtype)}
    load(found, into=tensors, marker=marker)
    said = json.loads(read_file(found, STATE_FILE, marker=marker))
    kit.state.restore(tensors, step=found.step)
    kit.clock.trained_seconds = said["trained_seconds"]
    stats.load_state(statistics, SavedStatistics(said["statistics"], tensors[STATISTICS]), world_size=session.world_size)
