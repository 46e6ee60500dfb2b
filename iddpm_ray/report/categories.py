"""What a worker's second can have been: names, the words for people, and a colour each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Category:
    """One kind of second.

    Attributes:
        name: as in the records.
        words: as a person reads it.
        about: one line more.
        colour: on the page.
        kind: `useful`, `start`, `around` (the run's own work beside steps), `lost` or `unknown`.
    """

    name: str
    words: str
    about: str
    colour: str
    kind: str


CATEGORIES: tuple[Category, ...] = (
    Category("productive", "productive", "steps that are part of the result", "#2a9d6f", "useful"),
    Category("redone", "redone", "steps that were done again, or would have to be", "#c8413b", "lost"),
    Category("detect", "detect", "from the end of use until the driver knew", "#8f2d56", "lost"),
    Category("idle", "between attempts", "workers that both attempts had, waiting for the next one", "#b9a3b0", "lost"),
    Category("schedule", "start: schedule", "until the worker's process was there, or, if it never spoke, to the end", "#1f4e79", "start"),
    Category("import", "start: import", "Python, its packages, and the ranks finding each other", "#2f6ea5", "start"),
    Category("build", "start: build", "network, optimiser, averages", "#4a8fc7", "start"),
    Category("compile", "start: compile", "compilation and the rehearsal before the first step", "#6fa8d6", "start"),
    Category("load", "start: load", "choosing and reading the checkpoint", "#93c0e4", "start"),
    Category("first_data", "start: first data", "waiting for the first pictures", "#b4d4ee", "start"),
    Category("first_step", "start: first step", "the first step, which warms everything up", "#d0e4f5", "start"),
    Category("data_wait", "data wait", "waiting for pictures", "#e9a23b", "around"),
    Category("checkpoint_stall", "checkpoint stall", "copying the state aside, waiting for the save before", "#d97b29", "around"),
    Category("row", "rows of numbers", "reading and writing statistics", "#a8b545", "around"),
    Category("validation", "validation", "losses on held-out pictures", "#7f9d3a", "around"),
    Category("sampling", "sampling", "drawing pictures to look at", "#5f7f34", "around"),
    Category("evaluation", "evaluation", "measuring quality while training", "#49632b", "around"),
    Category("stopping", "stopping", "last save, and the end of the processes", "#6b6f7b", "around"),
    Category("unaccounted", "unaccounted", "in none of these", "#d9d9d9", "unknown"),
)
"""In the order in which they are shown; together, with those of no list, all worker-seconds of a run."""

NAMES = tuple(category.name for category in CATEGORIES)
START = tuple(category.name for category in CATEGORIES if category.kind == "start")
RESTART = ("detect", "stop", "idle", *START)
"""The phases from the end of use of one attempt to the first step of the next; `stop` is the end of the old processes."""

_BY_NAME = {category.name: category for category in CATEGORIES}


def category(name: str) -> Category:
    """The category of that name; one that is not listed keeps its name."""
    return _BY_NAME.get(name) or Category(name, name, "", "#9aa0a6", "around")


def in_order(names: set[str]) -> list[str]:
    """Names as they are shown: the listed ones, others before `unaccounted`."""
    others = sorted(names - {*NAMES})
    return [*NAMES[:-1], *others, NAMES[-1]]
