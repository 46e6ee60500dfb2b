"""The names under which columns of a row are shown: `group/column`, in groups that are the sections of a page."""

import re

# The first pattern that matches a key's beginning names its group.
GROUPS = (
    ("validation", re.compile(r"val(idation)?_")),
    ("loss by timestep", re.compile(r"(loss|mse|vb)\w*_(t|bin)\d")),
    ("loss", re.compile(r"loss|mse|vb")),
    ("optimiser", re.compile(r"grad_norm|param_norm|lr|lg_loss_scale|skipped|microbatch")),
    ("time", re.compile(r"time_|productive_share")),
    ("speed", re.compile(r"images_per_second|data_wait|memory|mfu|\w*(_s|_gib|_per_second)$")),
)


def tag_of(key: str) -> str:
    """The tag of a column, `group/key`."""
    return next((f"{group}/{key}" for group, pattern in GROUPS if pattern.match(key)), f"other/{key}")
