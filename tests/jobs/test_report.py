"""The program of the report: a table, a page where it is wanted, and one clear line when there is no run."""

import json
import runpy
from pathlib import Path

import pytest

from iddpm_ray import storage

report = runpy.run_path(str(Path(__file__).parents[2] / "jobs" / "report.py"))["main"]


def run_at(url: str) -> str:
    ledger = {"import": 2.0, "first_step": 1.0, "productive": 6.0}
    end = {"why": "finished", "began": 10.0, "ended": 20.0, "step": 4, "reached": 4}
    end["ranks"] = {"0": {"began": 11.0, "now": 20.0, "ledger": ledger}}  # type: ignore[assignment]
    storage.write_whole(storage.join(url, "attempts/0001.json"), json.dumps({"from": None, "workers": 1, "began": 10.0}).encode())
    storage.write_whole(storage.join(url, "attempts/0001.end.json"), json.dumps(end).encode())
    return url


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_prints_a_table_and_leaves_a_page_in_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str) -> None:
    url = run_at(f"{scheme}{tmp_path}/run")
    assert report([url]) == 0
    said = capsys.readouterr().out
    assert "goodput 60.0 % of 10.0 worker-seconds; step 4 after 1 attempt, 0 steps redone; unaccounted 0.00 %" in said
    assert said.rstrip().endswith(f"{url}/report.html")
    assert b"60.0 %" in storage.read_bytes(f"{url}/report.html")


def test_the_page_goes_where_it_is_wanted(tmp_path: Path) -> None:
    url = run_at(str(tmp_path / "run"))
    assert report([url, "--html", str(tmp_path / "elsewhere.html")]) == 0
    assert (tmp_path / "elsewhere.html").stat().st_size > 1000
    assert not (tmp_path / "run/report.html").exists()


def test_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
    blocked = run_at(str(tmp_path / "run"))
    (tmp_path / "file").write_text("")
    assert report([blocked, "--html", str(tmp_path / "file" / "page.html")]) == 2
    assert "give another place with --html" in capsys.readouterr().err
