"""Says what a run cost and where its time went: `python jobs/report.py RUN`; a table here, and a page in the run's directory."""

import argparse
import sys
from collections.abc import Sequence

from iddpm_ray import storage
from iddpm_ray.errors import UserError


def main(argv: Sequence[str]) -> int:
    """Reads the run's records, prints the table, writes the page; returns the exit code."""
    wanted = _parser().parse_args(argv)
    from iddpm_ray.report.page import report_page  # torch is imported only once there is something to report on
    from iddpm_ray.report.read import read_run
    from iddpm_ray.report.text import report_text

    try:
        run = read_run(wanted.run)
        print(report_text(run))
        page = wanted.html or storage.join(wanted.run, "report.html")
        _write(page, report_page(run).encode())
        print(f"\nthe same with curves and samples: {storage.shown(page)}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _write(url: str, page: bytes) -> None:
    try:
        storage.write_whole(url, page)
    except UserError:
        raise
    except Exception as error:  # every store has errors of its own
        raise UserError(f"cannot write {storage.shown(url)} ({storage.reason(error)})", fix="give another place with --html") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Says what a run cost and where the time of its workers went: a table here, and one self-contained HTML page."
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory, {run.output_dir}/{run.name}, at any fsspec URL; it may still run")
    parser.add_argument("--html", metavar="FILE", help="where the page goes, a path or URL (RUN/report.html)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
