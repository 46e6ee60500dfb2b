"""What a run will take and cost before anything is rented: hours, machines, money, reclaims; pure arithmetic."""

from dataclasses import dataclass

from iddpm_ray.errors import SpecError
from iddpm_ray.kube.machines import GIB, MACHINES
from iddpm_ray.kube.shape import drain_seconds, shape
from iddpm_ray.spec.spec import JobSpec

UTILISATION = 0.3  # of a GPU's peak rate, assumed where nothing was measured
RETURN_S = 300.0  # from a reclaim until the group steps again, assumed: a new machine, an image, a checkpoint


@dataclass(frozen=True)
class Pace:
    """How long a step takes, and how that is known, in words."""

    step_s: float
    origin: str


@dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Attributes:
        hours: from the first step to the last, reclaims included; no more than `cluster.max_hours`.
        whole_hours: that all steps would take; more than `hours` where the run is cut off.
        pods: machines at a time.
        gpus: of all of them.
        cost: of all workers for those hours; None without a price.
        reclaims: expected in that time; None on machines that are not reclaimed.
        waiting_hours: of `hours` that go to reclaims.
    """

    hours: float
    whole_hours: float
    pods: int
    gpus: int
    pace: Pace
    cost: float | None
    reclaims: float | None
    waiting_hours: float

    def describe(self, spec: JobSpec) -> str:
        """For a person."""
        each = f" x {self.gpus // self.pods} {'GPUs' if self.gpus > self.pods else 'GPU'}" if self.gpus else ""
        lines = {
            "machines": f"{self.pods} x {spec.kube.machine}{each}, {spec.kube.capacity}",
            "step": f"{self.pace.step_s:.3g} s ({self.pace.origin})",
            "hours": _few(self.hours),
        }
        if self.reclaims is not None:
            window = drain_seconds(spec.kube.reclaim_window_s)
            lines["hours"] += f", {_few(self.waiting_hours)} of them after reclaims"
            lines["reclaims"] = f"{_few(self.reclaims)} expected; a save has to fit {window} s (preflight measures it)"
        if self.whole_hours > self.hours:
            lines["hours"] += f"; saved and stopped then (cluster.max_hours), all steps take {_few(self.whole_hours)}"
        if self.cost is not None:
            wasted = self.cost * self.waiting_hours / self.hours if self.hours else 0.0
            lines["cost"] = f"{self.cost:,.2f}" + (f", {wasted:,.2f} of it after reclaims" if self.reclaims is not None else "")
        else:
            lines["cost"] = "not known: give cluster.price_per_worker_hour"
        return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def _few(number: float) -> str:
    """Three figures, more before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def forecast(spec: JobSpec, *, steps: int | None, pace: Pace, reclaims_a_day: float = 0.0, return_s: float = RETURN_S) -> Forecast:
    """Works it out for the most workers that the run may have.

    Args:
        steps: of the whole run; None where it ends by the clock.
        reclaims_a_day: of one machine.
        return_s: that a reclaim costs the whole group.

    Raises:
        SpecError: it does not fit its machines, or reclaims would leave no time to train.
    """
    cut, workers = shape(spec), spec.cluster.worker_range()[1]
    reclaimed = spec.kube.capacity != "on-demand"
    rate = reclaims_a_day * cut.pods / 86400 if reclaimed else 0.0  # reclaims of any machine, a second
    share = rate * return_s
    if share >= 1:
        fix = "fewer machines, longer ones of on-demand (kube.capacity), or a quicker return"
        what = (
            f"{cut.pods} machines are reclaimed every {1 / rate:,.0f} s, and each time {return_s:,.0f} s are lost: the run would never end"
        )
        raise SpecError(what, fix=fix)
    if steps is None:
        seconds = spec.train.duration.amount * 60
        waiting = seconds * share
    else:
        seconds = steps * pace.step_s / (1 - share)
        waiting = seconds - steps * pace.step_s
    whole_hours = seconds / 3600
    hours = min(whole_hours, spec.cluster.max_hours or whole_hours)
    run = hours / whole_hours if whole_hours else 1.0
    price = spec.cluster.price_per_worker_hour
    return Forecast(
        hours=hours,
        whole_hours=whole_hours,
        pods=cut.pods,
        gpus=cut.pods * cut.gpus,
        pace=pace,
        cost=None if price is None else price * workers * hours,
        reclaims=rate * seconds * run if reclaimed else None,
        waiting_hours=waiting * run / 3600,
    )


def assumed_pace(spec: JobSpec, *, flop: float) -> Pace:
    """From the operations of a step and the peak rate of the machine's GPU.

    Args:
        flop: of a step over all workers, backward pass included.

    Raises:
        SpecError: the machine has no GPU.
    """
    gpu = MACHINES[spec.kube.machine].gpu
    if gpu is None:
        raise SpecError(
            "the time of a step on CPUs is not known beforehand",
            fix="give --step-seconds, or --from RUN for that of a run which has stepped",
        )
    optim = spec.optim
    kind = "bf16" if optim.precision in ("bf16", "fp16") else "fp32" if optim.matmul_precision == "highest" else "tf32"
    peak = {"bf16": gpu.bf16, "fp32": gpu.fp32, "tf32": gpu.tf32}[kind] * 1e12
    seconds = flop / (spec.cluster.worker_range()[1] * peak * UTILISATION)
    return Pace(seconds, f"assumed: {UTILISATION:.0%} of the {peak / 1e12:g} TFLOP/s of {gpu.name} in {kind}")


def check_memory(spec: JobSpec, *, state_bytes: int, activation_bytes: int, samples: int) -> None:
    """Whether a worker's share fits its GPU.

    Args:
        state_bytes: weights, gradients, moments, averages.
        activation_bytes: of one picture.
        samples: of a microbatch; 1 where the largest that fits is found at the start.

    Raises:
        SpecError: it does not fit.
    """
    gpu = MACHINES[spec.kube.machine].gpu
    if gpu is None:
        return
    need, have = state_bytes + samples * activation_bytes, gpu.memory_gib * GIB
    if need <= have:
        return
    fits = int((have - state_bytes) // activation_bytes)
    fix = (
        f"set optim.microbatch to {fits} or less, or to auto"
        if fits >= 1
        else "take a kube.machine with a larger GPU, a smaller model, or model.gradient_checkpointing"
    )
    what = f"a worker needs about {need / GIB:.3g} GiB ({samples} pictures at a time), and the {gpu.name} of {spec.kube.machine}"
    raise SpecError(f"{what} has {gpu.memory_gib:g}", fix=fix)
