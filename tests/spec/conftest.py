"""Numbers recorded from the original that the spec has to agree with."""

import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def golden_flags() -> dict[str, Any]:
    """Flags of the original's training program and their defaults."""
    return {name: default for name, _, default in json.loads((GOLDEN / "cli_flags.json").read_text())["image_train"]}


@pytest.fixture
def golden_respacing() -> list[dict[str, Any]]:
    """Respacings that the original accepts or refuses, and how many timesteps they leave."""
    return json.loads((GOLDEN / "respacing.json").read_text())["space_timesteps"]
