"""Lets the tests of this folder import the modules beside them, and quiets what DCP says of itself."""

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore:torch.distributed is disabled, unavailable or uninitialized")
    logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.WARNING)  # two records a tensor
