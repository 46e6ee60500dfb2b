"""Section `run`: what the run is called, where it lives, and its seed."""

from iddpm_ray.spec.mark import REQUIRED, Section, identity, may_change


class RunSpec(Section):
    """What the run is called, where it lives, and its seed."""

    name: str = may_change(REQUIRED, "name of the run, its directory under output_dir: letters, digits, . _ - (at most 100)", unit="text")
    output_dir: str = may_change(REQUIRED, "where runs are kept: any fsspec URL or path that every worker reaches", unit="URL")
    seed: int = identity(0, "seed of every draw: weights, order, noise, timesteps, flips, dropout", unit="number", ge=0, lt=2**63)
