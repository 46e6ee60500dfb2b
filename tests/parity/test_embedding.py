"""The sinusoidal embedding of timesteps against the recorded one."""

import re

import numpy as np
import torch
from golden import Golden

from iddpm_ray.models.nn import timestep_embedding, timestep_frequencies

# Two float32 programs may round a frequency, and then its product with a timestep, differently by this share each.
ONE_ROUNDING = 2.0**-23


def test_frequencies_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("embedding.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"freqs\.dim(\d+)", name):
                g.check(name, timestep_frequencies(int(match[1])), rtol=ONE_ROUNDING)


def test_embeddings_are_the_recorded_ones(golden: Golden) -> None:
    g = golden.open("embedding.npz")
    with g.collecting():
        for name in g.names():
            if match := re.fullmatch(r"(int|float)\.dim(\d+)(?:\.period(\d+))?", name):
                t, dim, period = torch.from_numpy(g.input(f"t_{match[1]}")), int(match[2]), float(match[3] or 10000)
                angles = np.abs(t.double().numpy()[:, None] * timestep_frequencies(dim, max_period=period).double().numpy())
                slack = np.pad(np.concatenate([angles, angles], axis=1), ((0, 0), (0, dim % 2))) * 2 * ONE_ROUNDING
                g.check(name, timestep_embedding(t, dim=dim, max_period=period), atol=slack + 1e-6)
