"""The whole variational bound of pictures under formula networks against the recorded one."""

from typing import Any

import numpy as np
import torch
from binning import decoder_slack
from golden import Golden, GoldenFile
from process import FormulaNetwork, process_of

from iddpm_ray.diffusion.gaussian import predict, q_sample
from iddpm_ray.diffusion.likelihood import BitsPerDim
from iddpm_ray.evaluate.nll import Pictures, whole_bound


def _bound(g: GoldenFile, case: dict[str, Any], network: FormulaNetwork, dtype: torch.dtype) -> BitsPerDim:
    noise = torch.from_numpy(g.input(f"{case['id']}.noise"))
    x_start = torch.from_numpy(g.input("x_start")).to(dtype)
    pictures = Pictures(x_start, torch.arange(len(x_start)), {})
    return whole_bound(process_of(case), network, pictures, noise=lambda done: noise[done], clip=bool(case["clip"]))


def _room(g: GoldenFile, case: dict[str, Any], dtype: torch.dtype) -> dict[str, np.ndarray]:
    """What rounding may do to the last column of `vb`, and so to the total."""
    diffusion = process_of(case)
    x_start = torch.from_numpy(g.input("x_start")).double()
    t = torch.zeros(x_start.shape[0], dtype=torch.int64)
    x_t = q_sample(diffusion, x_start=x_start, t=t, noise=torch.from_numpy(g.input(f"{case['id']}.noise")[-1]))
    output = predict(diffusion, FormulaNetwork(case), x_t=x_t, t=t, cond={})
    room = decoder_slack(diffusion, output=output, x_start=x_start, x_t=x_t, t=t, clip=bool(case["clip"]), dtype=dtype).numpy()
    columns = np.zeros((len(room), diffusion.num_timesteps))
    columns[:, -1] = room
    return {"vb": columns, "total_bpd": room}


def test_the_bound_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("bpd.npz")
    with g.collecting():
        for case in golden.records("sampling.json", "bpd"):
            network = FormulaNetwork(case)
            rounded, exact = _bound(g, case, network, torch.float32), _bound(g, case, FormulaNetwork(case), torch.float64)
            room = _room(g, case, torch.float32)
            for part in ("vb", "xstart_mse", "mse", "prior_bpd", "total_bpd"):
                ours, precise = getattr(rounded, part), getattr(exact, part)
                atol = 6e-8 if part == "prior_bpd" else 1e-7 + room.get(part, np.zeros(()))
                g.check_rounded(f"{case['id']}.{part}", ours, exact=precise, rtol=1e-5, atol=atol)
            name = f"{case['id']}.model_t"
            assert network.told().numpy().dtype == g.arrays[name].dtype, name
            g.check(name, network.told())


def test_the_bound_in_float64_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("bpd.npz")
    with g.collecting():
        for case in golden.records("sampling.json", "bpd"):
            exact = _bound(g, case, FormulaNetwork(case), torch.float64)
            unrounded = _bound(g, case, FormulaNetwork(case, exact_tau=True), torch.float64)
            room = _room(g, case, torch.float64)
            for part in ("vb", "total_bpd"):
                # A rescaled timestep that float32 cannot hold may have been rounded in the recorded run or not.
                told = 2 * (getattr(exact, part) - getattr(unrounded, part)).abs().numpy()
                g.check(f"{case['id']}.{part}.f64", getattr(exact, part), rtol=1e-9, atol=1e-13 + told + room[part])
