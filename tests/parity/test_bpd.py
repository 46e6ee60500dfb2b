"""The whole variational bound of pictures under formula networks against the recorded one."""

from typing import Any

import torch
from golden import Golden, GoldenFile
from process import FormulaNetwork, process_of

from iddpm_ray.diffusion.likelihood import BitsPerDim, bits_per_dim


def _bound(g: GoldenFile, case: dict[str, Any], network: FormulaNetwork, dtype: torch.dtype) -> BitsPerDim:
    noise = torch.from_numpy(g.input(f"{case['id']}.noise"))
    x_start = torch.from_numpy(g.input("x_start")).to(dtype)
    return bits_per_dim(process_of(case), network, x_start=x_start, noise=lambda done: noise[done], cond={}, clip=bool(case["clip"]))


def test_the_bound_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("bpd.npz")
    with g.collecting():
        for case in golden.records("sampling.json", "bpd"):
            network = FormulaNetwork(case)
            rounded, exact = _bound(g, case, network, torch.float32), _bound(g, case, FormulaNetwork(case), torch.float64)
            for part in ("vb", "xstart_mse", "mse", "prior_bpd", "total_bpd"):
                g.check_rounded(f"{case['id']}.{part}", getattr(rounded, part), exact=getattr(exact, part), rtol=1e-5, atol=1e-7)
            name = f"{case['id']}.model_t"
            assert network.told().numpy().dtype == g.arrays[name].dtype, name
            g.check(name, network.told())


def test_the_bound_in_float64_is_the_recorded_one(golden: Golden) -> None:
    g = golden.open("bpd.npz")
    with g.collecting():
        for case in golden.records("sampling.json", "bpd"):
            exact = _bound(g, case, FormulaNetwork(case), torch.float64)
            unrounded = _bound(g, case, FormulaNetwork(case, exact_tau=True), torch.float64)
            for part in ("vb", "total_bpd"):
                # A rescaled timestep that float32 cannot hold may have been rounded in the recorded run or not.
                slack = 2 * (getattr(exact, part) - getattr(unrounded, part)).abs().numpy()
                g.check(f"{case['id']}.{part}.f64", getattr(exact, part), rtol=1e-9, atol=1e-13 + slack)
