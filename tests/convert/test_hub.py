"""`hf://`: files of a hub that a server of ours plays, by revision, pinned to a commit, with one clear error when it cannot be reached."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from convert.hub_server import COMMIT, Hub
from convert.weights import filled, save_pt, spec_of

from iddpm_ray.convert.hub import fetch
from iddpm_ray.convert.write import write_model
from iddpm_ray.errors import SpecError

PROGRAM = """
import sys
from iddpm_ray.convert.hub import fetch
from iddpm_ray.errors import UserError
for url in sys.argv[1:]:
    try:
        fetched = fetch(url)
        print("fetched", fetched.pinned)
        if not url.endswith(".pt"):
            from iddpm_ray.convert.model import Given
            from iddpm_ray.convert.source import open_model
            print("opened", len(open_model(url, given=Given({"model.qkv_order": "heads_first"})).tensors))
    except UserError as error:
        print("error", error)
"""


def asked_of(endpoint: str, home: Path, *urls: str) -> list[str]:
    """What a process says that looks for URLs on a hub; huggingface_hub reads its surroundings once, when it is imported."""
    pytest.importorskip("huggingface_hub")
    surroundings = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *urls], env=surroundings, capture_output=True, text=True, timeout=200, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_a_folder_and_a_file_are_fetched_once_and_pinned_to_a_commit(tmp_path: Path) -> None:
    model = filled(spec_of({}))
    write_model(model, str(tmp_path / "repository"), say=print)
    save_pt(model, tmp_path / "repository" / "w.pt")
    hub = Hub(tmp_path / "repository")
    try:
        said = asked_of(
            hub.url, tmp_path / "home", "hf://org/name@v1", "hf://org/name/w.pt", "hf://org/name@v9", "hf://org/name@v1/none.pt"
        )
    finally:
        hub.close()
    assert said[0] == f"fetched hf://org/name@{COMMIT}"
    assert said[1] == f"opened {len(model.tensors)}"
    assert said[2] == f"fetched hf://org/name@{COMMIT}/w.pt"
    assert said[3].startswith("error cannot fetch hf://org/name@v9 (")
    assert said[4].startswith("error cannot fetch hf://org/name@v1/none.pt (")
    assert len([path for path in hub.asked if path.endswith("resolve/" + COMMIT + "/unet/diffusion_pytorch_model.safetensors")]) <= 2


def test_a_hub_out_of_reach_is_one_clear_error(tmp_path: Path) -> None:
    (line,) = asked_of("http://127.0.0.1:9", tmp_path, "hf://org/name")
    assert line.startswith("error cannot fetch hf://org/name (")
    assert line.endswith("check name, revision and network (HF_TOKEN for a private one), or copy the files here and name their folder")


@pytest.mark.parametrize("url", ["hf://name", "hf://org/name/other.txt", "hf://org/name@", "hf://"])
def test_a_url_that_names_no_repository_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="write hf://org/name@revision"):
        fetch(url)


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SpecError, match="pip install huggingface_hub"):
        fetch("hf://org/name")
