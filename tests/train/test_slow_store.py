"""A store that is slow on one rank is waited for as long as a save may take, however short the patience of training's own collectives."""

import time
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from train.small_run import small_spec, start, write_pictures

from iddpm_ray.sinks.jsonl import JsonlSink
from iddpm_ray.spec.spec import JobSpec

PATIENCE_S, SLOW_S = 6.0, 10.0


def start_with_a_slow_store(spec: JobSpec) -> Any:
    """Rank 0 alone writes rows, before the marker."""
    commit = JsonlSink.commit

    def slow(self: JsonlSink, step: int) -> None:
        time.sleep(SLOW_S)
        commit(self, step)

    JsonlSink.commit = slow
    return start(spec)


@pytest.mark.slow
def test_a_save_slower_than_a_collective_may_be_ends_nothing(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    spec = small_spec(
        tmp_path,
        train={"duration": "20 steps"},
        checkpoint={"every": "10 steps"},
        cluster={"workers": 2, "collective_timeout_s": PATIENCE_S},
    )
    results = run_ranks(start_with_a_slow_store, 2, spec, group_timeout_s=PATIENCE_S)
    assert [(outcome.why, outcome.step) for outcome, _ in results] == [("finished", 20)] * 2
    assert not any("NOT saved" in line for _, lines in results for line in lines)
