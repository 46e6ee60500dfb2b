"""The report of a real run, and of records that mean harm: it says the same in the terminal and on a page that needs nothing else."""

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from report.records import attempt, rank

from iddpm_ray import storage
from iddpm_ray.checkpoint.attempts import end_attempt
from iddpm_ray.checkpoint.commit import checkpoint_at
from iddpm_ray.errors import UserError
from iddpm_ray.report.accounts import run_account
from iddpm_ray.report.axes import scale_of, thinned
from iddpm_ray.report.page import report_page
from iddpm_ray.report.read import PICTURES, Run, read_run
from iddpm_ray.report.text import money, report_text
from iddpm_ray.sinks.evaluations import keep_evaluation
from iddpm_ray.sinks.jsonl import encode_row
from iddpm_ray.sinks.pictures import to_png
from iddpm_ray.train.session import LocalSession, Wish

VOID = ("meta", "img")


class Page(html.parser.HTMLParser):
    """Collects the tags, refuses a page whose tags do not close, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


class Stopping(LocalSession):
    """Somebody asks the run to stop at once."""

    def wish(self) -> Wish:
        return Wish.STOP


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of two attempts, the first stopped; the driver's part is written by hand, from what the ranks said."""
    root = tmp_path_factory.mktemp("report")
    tiny.write_pictures(root / "pictures")
    changes: dict[str, Any] = {"train__duration": "6 steps", "checkpoint__every": "3 steps", "sample__every": "2 steps", "sample__count": 4}
    spec = tiny.tiny_spec(root, **changes, cluster__price_per_worker_hour=3.5, data__validation_fraction=0.25)
    folder = tiny.run_folder(spec)
    for number, session in enumerate((Stopping(), LocalSession()), 1):
        outcome = tiny.attempt(spec, session)
        said: Any = session.report()
        record = json.loads((folder / f"attempts/{number:04d}.json").read_text())
        record["began"] = said["began"] + said["ledger"]["import"] - 1  # a second of scheduling before this process, which is older
        (folder / f"attempts/{number:04d}.json").write_text(json.dumps(record))
        end = {"why": outcome.why, "cause": "as <b>asked</b>", "step": outcome.step, "reached": outcome.step, "ended": said["now"] + 0.5}
        end_attempt(str(folder), number, info={**end, "noticed": said["now"], "ranks": {"0": said}})
    return folder


def test_the_books_of_a_real_run_add_up(run_folder: Path) -> None:
    account = read_run(str(run_folder)).account
    assert [one.why for one in account.attempts] == ["stopped", "finished"]
    assert account.step == 6
    assert account.redone == 0
    for one in account.attempts:
        assert sum(one.seconds.values()) == pytest.approx(one.worker_seconds)
        assert abs(one.seconds["unaccounted"]) <= 0.01 * one.worker_seconds
        assert one.seconds["first_step"] > 0
    assert account.cost == pytest.approx(account.total / 3600 * 3.5)


def test_terminal_and_page_say_the_same(run_folder: Path) -> None:
    run = read_run(str(run_folder))
    text, page = report_text(run), Page(report_page(run))
    assert re.search(r"^goodput \d+\.\d % of ", text, re.MULTILINE)
    assert text.splitlines()[1].startswith("goodput")
    assert run.account.goodput is not None
    assert run.account.cost is not None
    for said in (f"{100 * run.account.goodput:.1f} %", "checkpoint stall", "first step", "stopped", "finished", money(run.account.cost)):
        assert said in text
        assert said in page.text
    for title in (
        "Attempts",
        "Where the time went",
        "To the first step",
        "Loss by timestep",
        "Throughput",
        "Samples",
        "Machines and versions",
    ):
        assert title in page.text


def test_what_evaluations_found_is_on_both(run_folder: Path) -> None:
    """Of checkpoints that the run consists of; what an attempt measured that was rewound is left out."""
    url = str(run_folder)
    before = Page(report_page(read_run(url)))
    assert "Quality" not in before.text
    for step, number, fid in ((3, 2, 8.0), (6, 2, 2.5), (5, 1, 99.0)):
        checkpoint = checkpoint_at(url, step=step, attempt=number)
        metrics = {"fid[x]": fid, "kid[x]": 0.25}
        keep_evaluation(url, checkpoint, metrics, global_batch=4, tensorboard=True)
    run = read_run(url)
    assert [(row["step"], row["samples"], row["fid[x]"]) for row in run.evaluations] == [(3, 12, 8.0), (6, 24, 2.5)]
    text, page = report_text(run), Page(report_page(run))
    assert "  fid[x]  8 at step 3, 2.5 at step 6" in text
    assert "fid[x] over steps" in [value for name, value in page.attributes if name == "aria-label"]
    assert "Quality" in page.text


def test_the_page_needs_nothing_but_itself(run_folder: Path) -> None:
    text = report_page(read_run(str(run_folder)))
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    assert "tyle" in text
    assert not re.search(r"@import|url\(", text)
    fetched = [value for name, value in page.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert fetched
    assert all(value is not None and value.startswith("data:image/png;base64,") for value in fetched)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_what_others_wrote_is_only_text(run_folder: Path) -> None:
    page = Page(report_page(read_run(str(run_folder))))
    assert "b" not in page.tags
    assert "as <b>asked</b>" in page.text
    evil = '"><script>alert(1)</script>'
    hostile = attempt(1, began=1.0, ended=90.0, why=evil, cause=evil, step=3, reached=9, ranks={"0": rank(2.0, odd=1.0)}, workers=1)
    ledger = hostile.end["ranks"]["0"]["ledger"]  # type: ignore[index]
    ledger[evil] = 2.0
    run = Run(evil, evil, None, (hostile,), run_account([hostile]), ({"step": 1, evil: 1.0, "loss": evil},), (), (evil,))
    shown = Page(report_page(run))
    assert "script" not in shown.tags
    assert shown.text.count(evil) >= 5


def test_pictures_are_few_small_and_of_the_lineage(run_folder: Path, tmp_path: Path) -> None:
    run = read_run(str(run_folder))
    assert [picture.step for picture in run.pictures] == [2, 4, 6]
    long = tmp_path / "long"
    storage.write_whole(str(long / "attempts/0001.json"), json.dumps({"from": None, "workers": 1, "began": 1.0}).encode())
    for step in range(1, 20):
        storage.write_whole(str(long / f"samples/step-{step:08d}.a0001.png"), to_png(torch.zeros(1, 900, 700, dtype=torch.uint8)))
    storage.write_whole(str(long / "samples/step-00000030.a0007.png"), b"of another attempt")
    storage.write_whole(str(long / "samples/step-00000019.a0001.png"), b"torn")
    run = read_run(str(long))
    assert [picture.step for picture in run.pictures] == [1, 5, 8, 12, 15][: PICTURES - 1]
    assert all((picture.width, picture.height) == (498, 640) for picture in run.pictures)
    assert [problem for problem in run.problems if "step-00000019" in problem]


def test_a_damaged_run_is_reported_with_what_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    storage.write_whole(str(folder / "attempts/0001.json"), json.dumps({"from": None, "workers": 2, "began": 1.0}).encode())
    storage.write_whole(str(folder / "attempts/0002.json"), b"{torn")
    storage.write_whole(str(folder / "spec.yaml"), b"run: [")
    storage.write_whole(str(folder / "metrics/a0001.jsonl"), b"{torn")
    run = read_run(str(folder))
    text = report_text(run)
    assert "goodput: not known" in text
    assert "spec.yaml cannot be read" in text
    assert "a0001.jsonl: no row of numbers in line 1" in text
    Page(report_page(run))


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_place_without_a_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no attempts of a run: give a run's directory"):
        read_run(str(tmp_path / name))


def test_rewound_rows_are_not_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "rewound"
    records = {1: {"from": None}, 2: {"from": {"step": 2, "attempt": 1}}}
    for number, record in records.items():
        storage.write_whole(
            str(folder / f"attempts/{number:04d}.json"), json.dumps({**record, "workers": 1, "began": float(number)}).encode()
        )
        rows = [{"step": step, "samples": step, "loss": number} for step in range(1 if number == 1 else 3, 5)]
        storage.write_whole(str(folder / f"metrics/a{number:04d}.jsonl"), b"".join(encode_row(row) for row in rows))
    assert [(row["step"], row["loss"]) for row in read_run(str(folder)).rows] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_scales_hold_their_values_and_ticks_are_round() -> None:
    scale = scale_of([3.0, 97.0], begin=0, end=100)
    assert 0 <= scale.at(3.0) < scale.at(97.0) <= 100
    assert scale.ticks() == [0, 20, 40, 60, 80, 100]
    log = scale_of([0.002, 3.0], begin=100, end=0, log=True)
    assert log.log
    assert log.ticks() == pytest.approx([0.01, 0.1, 1])
    assert not scale_of([-1.0, 50.0], begin=0, end=1, log=True).log
    flat = scale_of([2.0, 2.0], begin=0, end=10)
    assert flat.at(2.0) == pytest.approx(5)


def test_long_curves_are_thinned_to_means_and_keep_their_breaks() -> None:
    points = [(float(step), float(step % 2)) for step in range(4000)]
    thin = thinned(points)
    assert len(thin) <= 400
    assert all(value == 0.5 for _, value in thin)
    points[17] = (17.0, float("nan"))
    assert sum(value != value for _, value in thinned(points)) == 1
