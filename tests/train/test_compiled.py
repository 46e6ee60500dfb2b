"""Compiled code outlives the machine that compiled it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from train.small_run import run_url, small_spec, write_pictures

from iddpm_ray.spec.text import dump_yaml
from iddpm_ray.train.compiled import CompiledCode

PROGRAM = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
import torch._dynamo.utils as seen
from iddpm_ray.spec.text import load_text
from train.small_run import start
outcome, messages = start(load_text(Path(sys.argv[1]).read_text()))
print(outcome.step, "hits", seen.counters["inductor"]["fxgraph_cache_hit"], "misses", seen.counters["inductor"]["fxgraph_cache_miss"])
print(messages)
"""


def test_only_a_compiled_network_has_code_to_keep(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    assert CompiledCode.of(small_spec(tmp_path), "run", device=cpu) is None
    beside = CompiledCode.of(small_spec(tmp_path, optim={"compile": True}), "run", device=cpu)
    elsewhere = CompiledCode.of(small_spec(tmp_path, optim={"compile": True, "compile_cache": "gs://b/code"}), "run", device=cpu)
    other = CompiledCode.of(small_spec(tmp_path, optim={"compile": True}, model={"num_channels": 64}), "run", device=cpu)
    assert beside is not None
    assert elsewhere is not None
    assert other is not None
    assert beside.url.startswith("run/compiled/")
    assert elsewhere.url.startswith("gs://b/code/")
    assert beside.url != other.url


def test_code_that_cannot_be_read_costs_only_time(tmp_path: Path) -> None:
    code = CompiledCode(str(tmp_path / "code.bin"))
    assert not code.take()
    (tmp_path / "code.bin").write_bytes(b"cut short")
    assert not code.take()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_start_on_a_fresh_machine_does_not_compile_again(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    shown = []
    for machine, steps in (("one", 2), ("two", 4)):
        spec = small_spec(tmp_path, optim={"compile": True}, train={"duration": f"{steps} steps"})
        (tmp_path / "spec.yaml").write_text(dump_yaml(spec))
        program = PROGRAM.format(tests=str(Path(__file__).parents[1]))
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / machine)}
        ran = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "spec.yaml")], env=environment, capture_output=True, text=True, timeout=1000
        )
        assert ran.returncode == 0, ran.stderr
        shown.append(ran.stdout)
    assert list(Path(run_url(spec), "compiled").iterdir())
    assert "hits 0" in shown[0]
    assert "hits 0" not in shown[1]
    assert "misses 0" in shown[1]
    assert "compiled code is there from an earlier start" in shown[1]
