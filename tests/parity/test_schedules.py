"""Schedules and their tables against the recorded ones."""

import re

import numpy as np
from golden import Golden
from process import process

from iddpm_ray.diffusion.respace import make_diffusion_as_original
from iddpm_ray.errors import SpecError


def test_betas_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("schedules.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"betas\.(\w+)\.(\d+)", name):
                g.check(name, process(match[1], int(match[2])).tables.betas, rtol=1e-12)


def test_tables_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("schedules.npz")
    with g.collecting():
        for name in g.names():
            match = re.fullmatch(r"(\w+)\.(\d+)\.(\w+)", name)
            if match and match[1] != "betas":
                table = getattr(process(match[1], int(match[2])).tables, match[3])
                g.check(name, table, rtol=1e-12, atol=1e-12 if "log" in match[3] else 0.0)


def test_the_original_accepts_and_refuses_the_recorded_step_counts(golden: Golden) -> None:
    g = golden.open("schedules.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"probe\.(\w+)_accepted", name):
                g.check(name, np.array([_accepted(match[1], int(count)) for count in g.input("probe.T")]))


def _accepted(schedule: str, num_timesteps: int) -> int:
    try:
        make_diffusion_as_original(schedule=schedule, num_timesteps=num_timesteps)
    except SpecError:
        return 0
    return 1
