"""A slice of the chaos, small enough for every run of the tests; `make chaos` does it at length."""

from pathlib import Path

import chaos
import pytest


@pytest.mark.timeout(400)
def test_a_few_faults_leave_the_run_as_if_nothing_had_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "chaos.md"
    code = chaos.main(["--kills", "2", "--seed", "31", "--minutes", "1.2", "--folder", str(tmp_path / "run"), "--write", str(written)])
    assert code == 0, capsys.readouterr().out
    assert (tmp_path / "run" / "faults.jsonl").read_text().count("\n") >= 1
    assert "every tensor and every row is that of an undisturbed run, bit for bit: yes" in written.read_text()
