"""Draws pictures from a run: `python jobs/sample.py RUN --count 50000`; resumable, and image i depends on (seed, i) alone."""

import argparse
import json
import sys
from collections.abc import Sequence

from iddpm_ray import signals, storage
from iddpm_ray.evaluate.command import check_urls, pool_options, run_program
from iddpm_ray.evaluate.command_sample import job_of, parser


def main(argv: Sequence[str]) -> int:
    """Draws what is not drawn yet, then writes it in the wanted form.

    Returns:
        the exit code: 0 done, 2 something to mend, 130 stopped, and the same command goes on.
    """
    return run_program(_sample, parser(__doc__), argv)


def _sample(wanted: argparse.Namespace) -> int:
    from iddpm_ray.evaluate import output  # torch is imported only once the command line has been understood
    from iddpm_ray.evaluate.generate import Sampler
    from iddpm_ray.sinks.bar import Bar

    check_urls(wanted, "run", "base", "out", "spec")
    job = job_of(wanted)
    url = storage.absolute(wanted.out or output.default_url(job))
    if wanted.dry_run:
        print(json.dumps({"out": storage.shown(url), "count": job.count, "batch": job.batch, **job.settings()}, indent=1))
        return 0
    storage.check_writable(url, field="--out")
    chunks = job.claim(url)
    if not output.is_done(job, chunks, form=wanted.format, grid=wanted.grid):
        from iddpm_ray.runtime.chunks import Pool, run_chunks

        pool = Pool(**pool_options(wanted))
        if not run_chunks(chunks, Sampler(job, chunks), pool=pool, unit="pictures"):
            print(f"\nstopped; the same command goes on: {storage.shown(url)}", file=sys.stderr)
            return 130
        output.write_all(
            job, chunks, form=wanted.format, grid=wanted.grid, keep_chunks=wanted.keep_chunks, progress=Bar("pictures written")
        )
    print(f"\n{job.count:,} pictures of {job.drawing.source.name}: {storage.shown(output.output_url(job, url, form=wanted.format))}")
    if wanted.grid:
        print(f"the first {min(wanted.grid, job.count)}: {storage.shown(storage.join(url, output.GRID))}")
    return 0


if __name__ == "__main__":
    signals.run_main(main)
