"""Chosen timesteps, shortened processes and what their network is told, against the recorded ones."""

import re

import numpy as np
import torch
from golden import Golden
from process import process

from iddpm_ray.diffusion.gaussian import model_timesteps
from iddpm_ray.diffusion.respace import space_timesteps
from iddpm_ray.errors import SpecError


def test_chosen_timesteps_and_refusals_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("respacing.npz")
    with g.collecting():
        for record in golden.records("respacing.json", "space_timesteps"):
            try:
                steps = space_timesteps(record["num_timesteps"], record["sections"])
            except SpecError:
                assert record["outcome"] == "ValueError", record
                continue
            assert (record["outcome"], record["count"]) == ("ok", len(steps)), record
            g.check(f"steps.{record['id']}", np.array(steps, dtype=np.int64))


def test_shortened_processes_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("respacing.npz")
    with g.collecting():
        for record in golden.records("respacing.json", "spaced_diffusion"):
            diffusion = process(record["schedule"], record["num_timesteps"], record["sections"])
            g.check(f"{record['id']}.timestep_map", diffusion.timestep_map)
            for table in ("betas", "alphas_cumprod", "posterior_log_variance_clipped"):
                g.check(f"{record['id']}.{table}", getattr(diffusion.tables, table), rtol=1e-12, atol=1e-12 if "log" in table else 0.0)


def test_the_network_is_told_the_recorded_timesteps(golden: Golden) -> None:
    g = golden.open("respacing.npz")
    with g.collecting():
        for record in golden.records("respacing.json", "spaced_diffusion"):
            for rescale in (False, True):
                diffusion = process(record["schedule"], record["num_timesteps"], record["sections"], rescale=rescale)
                told = model_timesteps(diffusion, torch.arange(diffusion.num_timesteps))
                name = f"{record['id']}.model_t.rescale{int(rescale)}"
                assert told.numpy().dtype == g.arrays[name].dtype, name
                g.check(name, told)


def test_the_network_of_a_whole_process_is_told_the_recorded_timesteps(golden: Golden) -> None:
    g = golden.open("respacing.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"base\.T(\d+)\.model_t\.rescale([01])", name):
                diffusion = process("linear", int(match[1]), rescale=match[2] == "1")
                told = model_timesteps(diffusion, torch.from_numpy(g.input(f"base.T{match[1]}.t")))
                assert told.numpy().dtype == g.arrays[name].dtype, name
                g.check(name, told)
