"""One driver at a time."""

import multiprocessing.pool
import os
import threading
import time
from pathlib import Path

import pytest
from stores import base_fixture, gcs_fixture, s3_fixture  # noqa: F401 fixtures are found by being here

from iddpm_ray import storage
from iddpm_ray.checkpoint.lease import Lease, LeaseLostError, check, release, renew, sign_of_life, take_lease
from iddpm_ray.errors import CheckpointError


def test_a_second_driver_is_refused_with_who_holds_the_run_since_when(base: str) -> None:
    first = take_lease(base, holder="anna on host-1", stale_after_s=60)
    with pytest.raises(CheckpointError, match=r"is in the hands of anna on host-1 since 20\d\d-.*renewed \d s ago.*stop that one first"):
        take_lease(base, holder="ben", stale_after_s=60)
    renew(first, renewed=1)
    with pytest.raises(CheckpointError, match="anna on host-1"):
        take_lease(base, holder="ben", stale_after_s=60)
    check(first)
    release(first)
    second = take_lease(base, holder="ben", stale_after_s=60)
    assert (first.term, second.term) == (1, 2)


def test_a_silent_holder_is_replaced_and_learns_of_it_when_it_wakes(base: str) -> None:
    zombie = take_lease(base, holder="anna", stale_after_s=60)
    time.sleep(1.3)
    successor = take_lease(base, holder="ben", stale_after_s=0.9)
    for operation in (check, lambda lease: renew(lease, renewed=7)):
        with pytest.raises(LeaseLostError, match="was taken over by ben"):
            operation(zombie)
    renew(successor, renewed=1)


def test_age_is_the_difference_of_two_times_of_the_store(tmp_path: Path) -> None:
    lease = take_lease(str(tmp_path), holder="anna", stale_after_s=60)
    path = tmp_path / "lease" / f"{lease.term:08d}.json"
    os.utime(path, (path.stat().st_mtime - 100,) * 2)
    take_lease(str(tmp_path), holder="ben", stale_after_s=99)
    assert sorted(file.name for file in path.parent.iterdir()) == ["00000001.json", "00000002.json"]


def test_a_renewal_ahead_of_the_clock_is_stale_once_it_was_watched_in_vain(tmp_path: Path) -> None:
    """A clock that was set back, or a lease copied from elsewhere, would hold the run for as long as it is ahead."""
    lease = take_lease(str(tmp_path), holder="anna", stale_after_s=60)
    path = tmp_path / "lease" / f"{lease.term:08d}.json"
    watched = sign_of_life(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"renewed \d s ago"):
        take_lease(str(tmp_path), holder="ben", stale_after_s=60, unchanged=watched)
    os.utime(path, (path.stat().st_mtime + 3600,) * 2)
    with pytest.raises(CheckpointError, match=r"in the hands of anna since .*renewed at a time 3[56]\d\d s ahead of the storage's clock"):
        take_lease(str(tmp_path), holder="ben", stale_after_s=60)
    renew(lease, renewed=1)
    os.utime(path, (path.stat().st_mtime + 3600,) * 2)
    with pytest.raises(CheckpointError, match="in the hands of anna"):
        take_lease(str(tmp_path), holder="ben", stale_after_s=60, unchanged=watched)
    take_lease(str(tmp_path), holder="ben", stale_after_s=60, unchanged=sign_of_life(str(tmp_path)))
    with pytest.raises(LeaseLostError, match="was taken over by ben"):
        check(lease)


def test_of_drivers_that_take_over_at_once_one_succeeds(tmp_path: Path) -> None:
    gate = threading.Barrier(4)

    def race(number: int) -> Lease | None:
        gate.wait()
        try:
            return take_lease(str(tmp_path), holder=str(number), stale_after_s=60)
        except CheckpointError:
            return None

    with multiprocessing.pool.ThreadPool(4) as drivers:
        taken = [lease for lease in drivers.map(race, range(4)) if lease is not None]
    assert len(taken) == 1
    assert [entry.name for entry in storage.list_dir(str(tmp_path / "lease"))] == ["00000001.json"]


def test_a_damaged_term_is_held_until_it_is_stale(tmp_path: Path) -> None:
    lease = take_lease(str(tmp_path), holder="anna", stale_after_s=60)
    (tmp_path / "lease" / f"{lease.term:08d}.json").write_text("{")
    with pytest.raises(CheckpointError, match="another driver"):
        take_lease(str(tmp_path), holder="ben", stale_after_s=60)
