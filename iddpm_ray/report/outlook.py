"""What a run will be and take, before a machine is rented: its plan, and what its steps come to in hours, money and reclaims."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from iddpm_ray import storage
from iddpm_ray.errors import SpecError, UserError
from iddpm_ray.kube.forecast import Pace, assumed_pace, check_memory, forecast
from iddpm_ray.plan import FORWARDS_A_STEP, make_plan
from iddpm_ray.report.read import read_run
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.directory import inspect_run


@dataclass(frozen=True)
class Known:
    """What is known beforehand.

    Attributes:
        step_s: seconds of a step; None: not measured.
        like: directory of a run whose steps took as long; None: there is none.
        reclaims_a_day: of one spot machine.
        return_s: that a reclaim costs.

    Raises:
        UserError: a number that no run can have.
    """

    step_s: float | None
    like: str | None
    reclaims_a_day: float
    return_s: float

    def __post_init__(self) -> None:
        for option, value in {"--step-seconds": self.step_s, "--return-seconds": self.return_s}.items():
            if value is not None and not 0 < value < math.inf:
                raise UserError(option, value=value, fix="should be a finite number greater than 0")
        if not 0 <= self.reclaims_a_day < math.inf:
            raise UserError("--reclaims-per-day", value=self.reclaims_a_day, fix="should be a finite number of at least 0")


def outlook(spec: JobSpec, known: Known, *, show: Callable[[str], None]) -> None:
    """Shows the plan, then the forecast.

    Raises:
        SpecError: the run does not fit its machines.
    """
    opening = inspect_run(spec)
    plan = make_plan(spec, opening.manifest, begins=opening.describe())
    show(plan.describe())
    cost = plan.cost
    check_memory(spec, state_bytes=cost.state_bytes, activation_bytes=cost.activation_bytes, samples=plan.microbatch or 1)
    taken = forecast(
        spec,
        steps=plan.steps,
        pace=_pace(spec, known, flop=FORWARDS_A_STEP * cost.forward_flop * spec.train.global_batch),
        reclaims_a_day=known.reclaims_a_day,
        return_s=known.return_s,
    )
    show(taken.describe(spec))


def _pace(spec: JobSpec, known: Known, *, flop: int) -> Pace:
    if known.step_s is not None:
        return Pace(known.step_s, "given")
    if known.like is None:
        return assumed_pace(spec, flop=flop)
    step_s = read_run(known.like).account.step_s
    if step_s is None:
        raise SpecError(f"{storage.shown(known.like)} has not stepped yet", fix="give --step-seconds")
    return Pace(step_s, f"measured in {storage.shown(known.like)}")
