"""The program of the report: a table, a page where it is wanted, and one clear line when there is no run."""

import json
import runpy
from collections.abc import Callable
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


def rows_of(*lines: str) -> Callable[[Path], object]:
    return lambda run: storage.write_whole(str(run / "metrics/a0001.jsonl"), "\n".join(lines).encode())


def record_of(**changes: object) -> Callable[[Path], object]:
    return lambda run: (run / "attempts/0001.json").write_text(json.dumps({"from": None, "workers": 1, "began": 10.0, **changes}))


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "row without a step": (rows_of('{"loss": 1}'), "a0001.jsonl: no row of numbers in line 1"),
    "step is null": (rows_of('{"step": null}', '{"step": 1, "loss": 2.5}'), "a0001.jsonl: no row of numbers in line 1"),
    "step is text": (rows_of('{"step": 1, "loss": 2.5}', '{"step": "x"}'), "a0001.jsonl: no row of numbers in line 2"),
    "losses at the end of the range": (
        rows_of('{"step": 1, "loss": 1e308}', '{"step": 2, "loss": -1e308}', '{"step": 3, "loss": 1.0}'),
        "too large for a chart: loss of step 1 and 1 more",
    ),
    "a time after all times": (record_of(began=1e18), "attempt 1: recorded as began = 1e+18, which is not believed"),
    "a time after all numbers": (record_of(began=1e300), "attempt 1: recorded as began = 1e+300, which is not believed"),
    "workers without end": (record_of(workers=10**12), "attempt 1: recorded as workers = 1000000000000, which is not believed"),
    "samples is a file": (lambda run: (run / "samples").write_text(""), "samples cannot be listed: NotADirectoryError"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_is_a_note_and_the_rest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    run = Path(run_at(str(tmp_path / "run")))
    spoil, note = ODD[case]
    spoil(run)
    assert report([str(run)]) == 0
    said = capsys.readouterr().out
    assert note in said.partition("\nnotes\n")[2]
    assert "goodput 60.0 %" in said
    assert note in (run / "report.html").read_text()


def test_half_a_character_in_a_record_is_shown_as_a_question_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(run_at(str(tmp_path / "run")))
    end = json.loads((run / "attempts/0001.end.json").read_text())
    (run / "attempts/0001.end.json").write_text(json.dumps({**end, "why": "failed", "cause": "half \ud800 of it"}))
    assert report([str(run)]) == 0
    assert "half ? of it" in (run / "report.html").read_text()
    capsys.readouterr().out.encode()


def test_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
    blocked = run_at(str(tmp_path / "run"))
    (tmp_path / "file").write_text("")
    assert report([blocked, "--html", str(tmp_path / "file" / "page.html")]) == 2
    assert "give another place with --html" in capsys.readouterr().err
