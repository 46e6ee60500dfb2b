"""A run's account as lines for a terminal."""

import textwrap
import time
from collections.abc import Sequence

from iddpm_ray.report.accounts import COUNTED, RunAccount
from iddpm_ray.report.attempt import Account
from iddpm_ray.report.categories import RESTART, category, in_order
from iddpm_ray.report.read import Run
from iddpm_ray.sinks.progress import duration_text
from iddpm_ray.sinks.rows import Row

WIDTH = 140
PHASES = {"detect": "detect", "stop": "stop", "idle": "between", "first_data": "data", "first_step": "first step"}


def report_text(run: Run) -> str:
    """The goodput line first, then attempts, categories, restarts, cost."""
    account = run.account
    parts = [
        "\n".join([f"{run.place}", goodput_line(account), *cost_lines(account)]),
        "attempts\n" + _attempts(account),
        "where the time of all workers went\n" + _categories(account),
        "seconds to the first step (mean of the workers)\n" + _restarts(account),
    ]
    if run.evaluations:
        parts.append("quality of the evaluated checkpoints\n" + _quality(run.evaluations))
    notes = [f"attempt {one.number}: {note}" for one in account.attempts for note in one.notes]
    if notes or run.problems:
        parts.append("notes\n" + "\n".join(f"  {line}" for line in [*notes, *run.problems]))
    return encodable("\n\n".join(parts))


def encodable(text: str) -> str:
    """The text with `?` for halves of characters, which a damaged record may hold and no file or terminal takes."""
    return text.encode(errors="replace").decode()


def metrics_of(rows: Sequence[Row]) -> list[str]:
    """The metrics that rows of evaluations have, in the order of the newest."""
    return [name for name in (rows[-1] if rows else {}) if name not in ("step", "samples", "attempt")]


def _quality(rows: Sequence[Row]) -> str:
    """A line a metric: what the first and the newest evaluated checkpoint had."""
    first, last = rows[0], rows[-1]
    names = metrics_of(rows)
    width = max(map(len, names), default=0)

    def said(row: Row, name: str) -> str:
        return f"{row[name]:.4g} at step {row['step']:,}" if name in row else ""

    shown = [[said(first, name)] if last is first else [said(first, name), said(last, name)] for name in names]
    return "\n".join(f"  {name:<{width}}  {', '.join(filter(None, one))}" for name, one in zip(names, shown, strict=True))


def goodput_line(account: RunAccount) -> str:
    """How much of what was rented went into the result."""
    if account.goodput is None:
        return "goodput: not known, no attempt recorded its time"
    return (
        f"goodput {100 * account.goodput:.1f} % of {hours(account.total)}; step {account.step:,} after "
        f"{counted(len(account.attempts), 'attempt')}, {counted(account.redone, 'step')} redone; "
        f"unaccounted {100 * account.unaccounted:.2f} %"
    )


def cost_lines(account: RunAccount) -> list[str]:
    """How often it was interrupted, and what it cost."""
    lines = [f"interrupted: {interruptions(account)}"]
    if account.cost is not None:
        useful = "" if account.goodput is None else f", {money(account.goodput * account.cost)} of it productive"
        lines.append(f"cost: {money(account.cost)}{useful}")
    return lines


def interruptions(account: RunAccount) -> str:
    """`2 preemptions, 1 machine lost`, or `never`."""
    counts = {words: account.endings.get(why, 0) for why, words in COUNTED.items()}
    return ", ".join(f"{count} {words[count > 1]}" for words, count in counts.items() if count) or "never"


def money(amount: float) -> str:
    """An amount in whatever currency the price was in."""
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.3g}"


def hours(worker_seconds: float) -> str:
    """Worker-seconds in the unit a person would use."""
    return f"{worker_seconds / 3600:,.2f} worker-hours" if worker_seconds >= 3600 else f"{worker_seconds:,.1f} worker-seconds"


def counted(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def moment(wall: float | None) -> str:
    """A wall second in UTC."""
    return "not known" if wall is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall))


def lasted(one: Account) -> str:
    """How long the attempt had its workers."""
    return "not known" if one.began is None or one.ended is None else duration_text(one.ended - one.began)


def phase_words(name: str) -> str:
    """A phase of a restart as a column's head."""
    return PHASES.get(name, name)


def _attempts(account: RunAccount) -> str:
    rows = [
        [
            str(one.number),
            str(one.workers),
            moment(one.began),
            lasted(one),
            f"{one.from_step:,} to {one.reached:,}",
            str(one.redone),
            one.why,
        ]
        for one in account.attempts
    ]
    lines = table(["", "workers", "began (UTC)", "lasted", "steps", "redone", "ended"], rows, left=(2, 6)).split("\n")
    indent = len(lines[0]) + 2
    out = [f"{lines[0]}  cause"]
    for line, one in zip(lines[1:], account.attempts, strict=True):
        cause = textwrap.wrap(one.cause, max(30, WIDTH - indent)) or [""]
        out += [f"{line}  {cause[0]}", *(" " * indent + more for more in cause[1:])]
    return "\n".join(line.rstrip() for line in out)


def _categories(account: RunAccount) -> str:
    rows: list[list[str]] = []
    for name in in_order(set(account.seconds)):
        seconds = account.seconds.get(name, 0.0)
        kind = category(name)
        share = seconds / account.total if account.total > 0 else 0.0
        rows.append([kind.words, f"{seconds:,.1f}", f"{100 * share:.2f} %", kind.about])
    rows.append(["all", f"{account.total:,.1f}", "100 %" if account.total > 0 else "", ""])
    return table(["", "worker-seconds", "share", ""], rows, left=(0, 3))


def _restarts(account: RunAccount) -> str:
    head = ["attempt", *(phase_words(name) for name in RESTART), "all"]
    rows = [
        [
            str(one.attempt),
            *(f"{one.phases[name]:.1f}" if name in one.phases else "" for name in RESTART),
            f"{one.seconds:.1f}" if one.stepped else f"no step in {one.seconds:.1f}",
        ]
        for one in account.restarts
    ]
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = ()) -> str:
    """Columns as wide as they need; right-aligned but for those of `left`."""
    widths = [max(len(row[index]) for row in [head, *rows]) for index in range(len(head))]
    lines = (
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    )
    return "\n".join("  " + line.rstrip() if left and len(head) - 1 in left else "  " + line for line in lines)
