"""A driver that finds the run held watches for a sign of life, and takes over from the dead alone."""

import os
import threading
from pathlib import Path

import pytest

from iddpm_ray.checkpoint.lease import Lease, renew, take_lease
from iddpm_ray.errors import CheckpointError
from iddpm_ray.runtime import hold


@pytest.fixture(name="ahead")
def ahead_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """A lease that was renewed an hour from now."""
    monkeypatch.setattr(hold, "RENEW_S", 0.5)
    lease = take_lease(str(tmp_path), holder="anna", stale_after_s=60)
    put_ahead(lease)
    return lease


def put_ahead(lease: Lease) -> None:
    path = Path(lease.run_url) / "lease" / "00000001.json"
    os.utime(path, (path.stat().st_mtime + 3600,) * 2)


def test_a_dead_holder_ahead_of_the_clock_is_replaced(ahead: Lease) -> None:
    said: list[str] = []
    mine = hold.take_hold(ahead.run_url, say=said.append, stale_s=1.0)
    mine.release()
    assert mine.lease.term == 2
    assert "s ahead of the storage's clock" in said[0]
    assert "-" not in said[0].partition("renewed")[2]


def test_a_living_holder_ahead_of_the_clock_keeps_the_run(ahead: Lease) -> None:
    end = threading.Event()

    def live() -> None:
        count = 0
        while not end.wait(0.3):
            count += 1
            renew(ahead, renewed=count)
            put_ahead(ahead)

    holder = threading.Thread(target=live)
    holder.start()
    try:
        with pytest.raises(CheckpointError, match="is in the hands of anna"):
            hold.take_hold(ahead.run_url, say=lambda _: None, stale_s=1.5)
    finally:
        end.set()
        holder.join()
