"""The page that stands in for Grafana shows every panel of the dashboard, with what Prometheus answers."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from observed_page import page, photograph
from PIL import Image

from iddpm_ray.kube.dashboard import dashboard


class Answers:
    """A Prometheus that answers every query of a run with two series, and says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, path: str, **parameters: Any) -> dict[str, Any]:
        self.asked.append(parameters["query"])
        if path == "query":
            return {"result": [{"metric": {}, "value": [parameters["time"], "0.25"]}]}
        values = [[parameters["start"] + 10 * number, str(number % 7 + 1)] for number in range(20)]
        return {"result": [{"metric": {"category": name, "quarter": name}, "values": values} for name in ("productive", "load")]}


def test_every_panel_is_drawn_from_its_own_queries(tmp_path: Path) -> None:
    answers: Any = Answers()
    text = page(answers, "cats", begin=1000.0, end=1200.0)
    panels = dashboard()["panels"]
    assert answers.asked == [
        target["expr"].replace("$run", "cats") for panel in panels for target in panel["targets"][: 1 if panel["type"] == "stat" else None]
    ]
    assert all(f"<h3>{panel['title']}</h3>" in text for panel in panels)
    assert "no data" not in text
    assert text.count("<svg") == sum(panel["type"] == "timeseries" for panel in panels)
    assert "<polygon" in text
    assert "quarter load" in text
    assert "25.0 %" in text
    if shutil.which("chromium") is None:
        pytest.skip("drawn; not looked at: needs chromium")
    (tmp_path / "page.html").write_text(text)
    photograph(tmp_path / "page.html", tmp_path / "page.png", height=400)
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.size == (1480, 400)
        assert len(picture.getcolors(maxcolors=1 << 20) or []) > 20
