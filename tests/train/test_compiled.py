"""Compiled code outlives the machine that compiled it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import fresh_cache
from train.small_run import run_url, small_spec, write_pictures

from iddpm_ray.spec.text import dump_yaml
from iddpm_ray.train import compiled
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


def code_url(root: Path, microbatch: int | str | None = None) -> str:
    code = CompiledCode.of(small_spec(root, optim={"compile": True, "microbatch": microbatch}), "run", device=torch.device("cpu"))
    assert code is not None
    return code.url


def test_every_cut_of_the_batch_has_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {code_url(tmp_path), code_url(tmp_path, 2), code_url(tmp_path, "auto")}
    assert len(alone) == 3
    monkeypatch.setattr(compiled, "world_size", lambda: 2)
    assert code_url(tmp_path) not in alone


def test_code_compiled_later_is_kept_too_and_code_that_was_there_is_not_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "code"

    def product(rows: int) -> None:
        torch.compile(torch.mm, dynamic=False)(torch.ones(rows, 3), torch.ones(3, 2))

    def kept(code: CompiledCode) -> bool:
        before = len(list(folder.glob("*")))
        code.keep()
        return len(list(folder.glob("*"))) > before

    try:
        with fresh_cache():
            torch.compiler.reset()
            code = CompiledCode(str(folder))
            product(4)
            assert kept(code)
            assert not kept(code)
            product(5)
            assert kept(code)
        with fresh_cache():  # as on another machine
            torch.compiler.reset()
            later = CompiledCode(str(folder))
            assert later.take()
            product(4)
            product(5)
            assert not kept(later)
            product(6)
            assert kept(later)
    finally:
        torch.compiler.reset()


def test_code_that_cannot_be_read_costs_only_time(tmp_path: Path) -> None:
    code = CompiledCode(str(tmp_path / "code"))
    assert not code.take()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "0.bin").write_bytes(b"cut short")
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
