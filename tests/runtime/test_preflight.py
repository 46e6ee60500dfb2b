"""What preflight makes of what it measures; and, on a real Ray, its table and exit code."""

import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from train.small_run import small_spec, write_pictures

from iddpm_ray.errors import UserError
from iddpm_ray.runtime import drill, look
from iddpm_ray.runtime.drill import choose
from iddpm_ray.runtime.look import Reading, Room
from iddpm_ray.runtime.preflight import Check, machines, reading, saving, table, worst
from iddpm_ray.spec.text import dump_yaml

ROOT = Path(__file__).parents[2]
GIB = 2**30
SPEC = small_spec(Path("/tmp"))


def room(host: str = "a", *, torch: str = "2.13.0", shm: int = 8 * GIB, disk: int = 90 * GIB) -> Room:
    return Room(host, {"python": "3.11", "torch": torch}, shm, disk)


def verdicts(checks: list[Check]) -> list[str]:
    return [f"{check.name} {check.verdict}" for check in checks]


def test_machines_that_agree_are_ok_and_one_that_differs_is_named() -> None:
    assert verdicts(machines({"1": room(), "2": room("b")}, embedded=False)) == ["versions ok", "room ok"]
    odd = machines({"1": room(), "2": room("b", torch="2.12.0")}, embedded=False)
    assert odd[0].verdict == "FAILED"
    assert "torch is 2.13.0 on a and 2.12.0 on b" in odd[0].text
    silent = machines({"1": room(), "2": TimeoutError("no answer")}, embedded=False)
    assert verdicts(silent) == ["machines FAILED"]


def test_little_room_is_a_warning_with_what_it_is() -> None:
    (_, small) = machines({"1": room(), "2": room(disk=GIB)}, embedded=False)
    assert small.verdict == "warning"
    assert "disk 1 GiB is little" in small.text


@pytest.mark.parametrize(
    ("total", "rate", "verdict"), [(100, 50, "ok"), (100, 15, "warning"), (100, 5, "FAILED")], ids=["fits twice", "fits once", "does not"]
)
def test_a_save_is_held_against_what_a_reclaim_leaves(total: int, rate: float, verdict: str) -> None:
    """15 s of window, 12 told, 1.2 until the ranks know: 10.8."""
    check = saving(SPEC, total=total, share=total, rate=rate)
    assert check.verdict == verdict
    assert check.text.startswith(f"saving takes {total / rate:.1f} s of 10.8 s")
    slow = SPEC.model_copy(update={"kube": SPEC.kube.model_copy(update={"capacity": "on-demand"})})
    assert saving(slow, total=total, share=total, rate=rate).verdict == "ok"
    longer = SPEC.model_copy(update={"kube": SPEC.kube.model_copy(update={"reclaim_window_s": 105})})
    assert saving(longer, total=total, share=total, rate=rate).verdict == "ok"


def test_pictures_are_held_against_what_steps_take() -> None:
    enough = reading(SPEC, Reading(100.0, ()), step_s=1.0)
    assert enough.verdict == "ok"
    assert "100 pictures/s a task x 1 tasks = 100/s, steps take 7/s" in enough.text
    assert reading(SPEC, Reading(5.0, ()), step_s=1.0).verdict == "warning"
    assert reading(SPEC, Reading(100.0, ("x.png is no picture",)), step_s=1.0).verdict == "FAILED"
    mild = SPEC.model_copy(update={"data": SPEC.data.model_copy(update={"on_error": "substitute"})})
    assert reading(mild, Reading(100.0, ("x.png is no picture",)), step_s=1.0).verdict == "warning"


def test_the_worst_check_decides_and_a_warning_lets_the_run_begin() -> None:
    checks = [Check("a", "ok", "x"), Check("longer", "warning", "y")]
    assert worst(checks) == 0
    assert worst([*checks, Check("c", "FAILED", "z")]) == 1
    assert table(checks) == "a       ok       x\nlonger  warning  y"


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_storage_that_does_all_is_used_and_left_clean(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}{tmp_path}/run"
    assert look.use_storage(url) is None
    assert look.upload(url, num_bytes=1000) > 0


def test_storage_that_refuses_says_at_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert str(look.use_storage(str(tmp_path / "file" / "run"))).startswith("write: ")
    monkeypatch.setattr(look.storage, "create", lambda url, data: True)
    assert look.use_storage(str(tmp_path / "run")) == "a file is created over another one: two drivers could take the same run"


def test_a_drill_takes_the_machine_with_the_most_ranks_or_the_one_that_is_named() -> None:
    nodes = [({"NodeID": f"{n}f" * 8, "NodeManagerHostname": f"host-{n}"}, ranks) for n, ranks in enumerate((0, 2, 1))]
    assert choose(nodes, None)["NodeManagerHostname"] == "host-1"
    assert choose(nodes, "2f2f")["NodeManagerHostname"] == "host-2"
    assert choose(nodes, "host-0")["NodeManagerHostname"] == "host-0"
    with pytest.raises(UserError, match="one of 0f0f"):
        choose(nodes, "host-9")
    with pytest.raises(UserError, match="no machine of this cluster has a rank of a run"):
        choose(nodes[:1], None)


def test_a_save_that_the_next_attempt_deletes_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks, and between a look and the question when it was made."""
    noticed = time.time() - 5
    old, new = SimpleNamespace(attempt=1, url="/run/old"), SimpleNamespace(attempt=2, url="/run/new")
    looks = iter([[old], [old, new]])
    times = iter([noticed + 2])

    def modified(url: str) -> float:
        if (moment := next(times, None)) is None:
            raise FileNotFoundError(url)
        return moment

    monkeypatch.setattr(drill, "complete", lambda url: next(looks))
    monkeypatch.setattr(drill, "attempts", lambda url: [])
    monkeypatch.setattr(drill.storage, "modified", modified)
    back = drill._back("/run", 1, noticed=noticed, patience_s=60)
    assert back.saved_s == pytest.approx(2)
    assert back.seconds >= 5


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_preflight_of_a_small_run_on_an_embedded_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(tmp_path / "pictures")
    spec = small_spec(tmp_path, cluster={"workers": 2, "cpus_per_worker": 0.5}, data={"cpus_per_task": 0.5})
    (tmp_path / "spec.yaml").write_text(dump_yaml(spec))
    program = runpy.run_path(str(ROOT / "jobs" / "cluster.py"))["main"]
    code = program(["preflight", str(tmp_path / "spec.yaml")])
    said = capsys.readouterr().out
    print(said, file=sys.stderr)
    names = [line.split()[0] for line in said.splitlines()]
    assert names == ["cluster", "versions", "room", "devices", "link", "storage", "data", "step", "pictures", "saving"]
    assert code == 0, said
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").rglob("*.preflight*")) == []
