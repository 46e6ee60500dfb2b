"""What a run will take: arithmetic that can be done by hand, and refusals of what cannot be."""

import runpy

import pytest
from kube.test_render import ROOT, spec_with

from iddpm_ray.errors import SpecError
from iddpm_ray.kube.forecast import Pace, assumed_pace, check_memory, forecast
from iddpm_ray.kube.machines import GIB
from iddpm_ray.report.outlook import Known

SECOND = Pace(1.0, "given")


def test_without_reclaims_hours_and_cost_are_products() -> None:
    spec = spec_with("kube.capacity=on-demand", "cluster.price_per_worker_hour=0.5")
    made = forecast(spec, steps=7200, pace=SECOND, reclaims_a_day=5)
    assert (made.hours, made.pods, made.gpus, made.cost, made.reclaims, made.waiting_hours) == (2.0, 4, 4, 4.0, None, 0.0)


def test_reclaims_prolong_the_run_by_the_time_they_cost() -> None:
    """Four machines, each reclaimed 2.16 times a day, are one reclaim each 10,000 s; of those 1,000 s are lost: a tenth."""
    made = forecast(spec_with("cluster.price_per_worker_hour=0.5"), steps=9000, pace=SECOND, reclaims_a_day=2.16, return_s=1000)
    assert made.hours == pytest.approx(10000 / 3600)
    assert made.reclaims == pytest.approx(1.0)
    assert made.waiting_hours == pytest.approx(1000 / 3600)
    assert made.cost == pytest.approx(0.5 * 4 * 10000 / 3600)


def test_a_run_by_the_clock_takes_its_time() -> None:
    made = forecast(spec_with("train.duration=600 min"), steps=None, pace=SECOND, reclaims_a_day=0)
    assert made.hours == 10


def test_a_run_that_is_cut_off_costs_no_more_than_its_hours() -> None:
    """Ten hours of steps, of which four are allowed; a tenth of the time goes to reclaims."""
    spec = spec_with("cluster.max_hours=4", "cluster.price_per_worker_hour=0.5")
    made = forecast(spec, steps=32400, pace=SECOND, reclaims_a_day=2.16, return_s=1000)
    assert (made.hours, made.whole_hours) == (4, pytest.approx(10))
    assert (made.cost, made.reclaims, made.waiting_hours) == (8.0, pytest.approx(1.44), pytest.approx(0.4))
    assert "hours       4, 0.4 of them after reclaims; saved and stopped then (cluster.max_hours), all steps take 10\n" in made.describe(
        spec
    )
    assert forecast(spec_with("train.duration=600 min", "cluster.max_hours=4"), steps=None, pace=SECOND).hours == 4
    within = forecast(spec, steps=3600, pace=SECOND)
    assert within.hours == within.whole_hours == 1
    assert "stopped" not in within.describe(spec)


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "0"])
@pytest.mark.parametrize("option", ["--step-seconds", "--return-seconds", "--reclaims-per-day"])
def test_numbers_that_no_run_can_have_are_refused(option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    if (option, number) == ("--reclaims-per-day", "0"):
        assert Known(0.5, None, reclaims_a_day=0.0, return_s=300.0)
        return
    main = runpy.run_path(str(ROOT / "jobs" / "cluster.py"))["main"]
    assert main(["plan", str(ROOT / "k8s/examples/cats.yaml"), f"{option}={number}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {option} (got {float(number)}): should be a finite number")
    assert said.count("\n") == 1


def test_machines_that_never_stay_are_refused() -> None:
    with pytest.raises(SpecError, match="the run would never end"):
        forecast(spec_with(), steps=10, pace=SECOND, reclaims_a_day=100, return_s=600)


def test_a_step_is_assumed_from_the_peak_of_the_arithmetic_that_is_used() -> None:
    flop = 4 * 30e12 * 0.3
    assert assumed_pace(spec_with(), flop=flop).step_s == pytest.approx(1.0)
    assert assumed_pace(spec_with("optim.matmul_precision=high"), flop=flop).step_s == pytest.approx(0.5)
    assert assumed_pace(spec_with("optim.precision=bf16"), flop=flop).step_s == pytest.approx(30 / 121)
    with pytest.raises(SpecError, match="--step-seconds"):
        assumed_pace(spec_with("kube.machine=e2-standard-8", "cluster.gpus_per_worker=0"), flop=flop)


def test_what_does_not_fit_the_gpu_is_refused_with_what_would() -> None:
    check_memory(spec_with(), state_bytes=4 * GIB, activation_bytes=GIB, samples=20)
    with pytest.raises(SpecError, match=r"needs about 36 GiB \(32 pictures at a time\).*L4.*24.*optim\.microbatch to 20 or less"):
        check_memory(spec_with(), state_bytes=4 * GIB, activation_bytes=GIB, samples=32)
    with pytest.raises(SpecError, match="larger GPU"):
        check_memory(spec_with(), state_bytes=30 * GIB, activation_bytes=GIB, samples=1)
