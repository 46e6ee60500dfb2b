"""`pytest tests/parity --golden DIR`: every array of DIR is checked, and the session ends with a table of it."""

from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from golden import DEFAULT_DIRECTORY, Golden, GoldenFile

_opened: dict[Path, Golden] = {}
_whole_suite: list[bool] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", default=str(DEFAULT_DIRECTORY), help="directory of recorded numbers (default: tests/golden)")


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    """The directory under test."""
    directory = Path(request.config.getoption("--golden", default=str(DEFAULT_DIRECTORY))).resolve()
    if directory not in _opened:
        _opened[directory] = Golden(directory)
        if not _opened[directory].files:
            raise pytest.UsageError(f"--golden {directory}: no .npz file there")
    return _opened[directory]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A whole run that left an array alone is a failure; a run of some files or names only is not."""
    ran = {item.path for item in session.items}
    whole = not session.config.option.keyword and all(path in ran for path in Path(__file__).parent.glob("test_*.py"))
    _whole_suite.append(whole)
    untouched = any(file.untouched() for golden in _opened.values() for file in golden.files.values())
    if untouched and whole and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for directory, golden in _opened.items():
        shown = [file for file in golden.files.values() if any(_whole_suite) or file.read or file.errors]
        terminalreporter.section(f"recorded numbers of {directory}")
        terminalreporter.line(
            f"{'file':36} {'arrays':>7} {'compared':>9} {'inputs':>7} {'untouched':>10} {'worst error':>12} {'of allowed':>11}  in"
        )
        for file in shown:
            terminalreporter.line(_row(file))
        widened = [f"{file.name}:{name}" for file in shown for name in file.widened]
        terminalreporter.line(
            f"arrays that only the wider allowance for rounding explains: {len(widened)}" + "".join(map("\n  {}".format, widened))
        )
        untouched = [f"{file.name}:{name}" for file in shown for name in file.untouched()]
        terminalreporter.line(f"arrays that no test touched: {len(untouched)}" + "".join(f"\n  {name}" for name in untouched))


def _row(file: GoldenFile) -> str:
    """The array that came nearest to its tolerance, or exceeded it most, is the one named."""
    where = max(file.shares, key=lambda name: (file.shares[name], file.errors[name]), default="")
    worst, share = (f"{file.errors[where]:.3g}", f"{file.shares[where]:.1%}") if where else ("-", "-")
    inputs = len(file.read - set(file.errors))
    counts = f"{len(file.arrays):7} {len(file.errors):9} {inputs:7} {len(file.untouched()):10}"
    return f"{file.name:36} {counts} {worst:>12} {share:>11}  {where}"
