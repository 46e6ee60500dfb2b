"""`pytest tests/parity --golden DIR`: every array of DIR is checked, and the session ends with a table of it."""

from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from golden import Golden

DEFAULT_DIRECTORY = Path(__file__).parent.parent / "golden"
_opened: dict[Path, Golden] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", default=str(DEFAULT_DIRECTORY), help="directory of recorded numbers (default: tests/golden)")


def _golden(config: pytest.Config) -> Golden:
    directory = Path(config.getoption("--golden", default=str(DEFAULT_DIRECTORY))).resolve()
    if directory not in _opened:
        _opened[directory] = Golden(directory)
    return _opened[directory]


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    """The directory under test."""
    return _golden(request.config)


def _whole_suite_ran(session: pytest.Session) -> bool:
    here = Path(__file__).parent
    ran = {item.path for item in session.items}
    return not session.config.option.keyword and all(path in ran for path in here.glob("test_*.py"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    untouched = [f"{file.name}:{name}" for golden in _opened.values() for file in golden.files.values() for name in file.untouched()]
    if untouched and _whole_suite_ran(session) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for directory, golden in _opened.items():
        terminalreporter.section(f"recorded numbers of {directory.name}")
        terminalreporter.line(f"{'file':36} {'arrays':>7} {'compared':>9} {'inputs':>7} {'worst error':>12}  of")
        for file in golden.files.values():
            where = max(file.errors, key=lambda name: file.errors[name], default="")
            worst = f"{file.errors[where]:.3g}" if where else "-"
            inputs = len(file.read - set(file.errors))
            terminalreporter.line(f"{file.name:36} {len(file.arrays):7} {len(file.errors):9} {inputs:7} {worst:>12}  {where}")
        untouched = [f"{file.name}:{name}" for file in golden.files.values() for name in file.untouched()]
        terminalreporter.line(f"arrays that no test touched: {len(untouched)}" + "".join(f"\n  {name}" for name in untouched))
