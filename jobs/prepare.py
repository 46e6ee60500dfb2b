"""Packs a data set for fast training: `python jobs/prepare.py SOURCE DESTINATION --image-size 64 --labels folder`; resumable."""

import argparse
import os
import sys
from collections.abc import Sequence

from iddpm_ray import signals, storage
from iddpm_ray.data import manifest, pack
from iddpm_ray.data.image import DEFAULT_MAX_PIXELS, Decoding
from iddpm_ray.errors import UserError
from iddpm_ray.evaluate.command import at_least
from iddpm_ray.sinks.bar import Bar


def main(argv: Sequence[str]) -> int:
    """Packs what is not packed yet; returns the exit code."""
    wanted = _parser().parse_args(argv)
    try:
        height, width = wanted.image_size
        decoding = Decoding(height, width, wanted.channels, tuple(wanted.background), wanted.max_pixels)
        source = manifest.build(wanted.source, labels=wanted.labels, image_column=wanted.image_column, label_column=wanted.label_column)
        rows_per_shard = wanted.rows_per_shard or max(1, pack.SHARD_BYTES // decoding.num_bytes)
        packing = pack.Packing(source, wanted.labels, decoding, rows_per_shard)
        report = pack.pack(packing, wanted.destination, on_error=wanted.on_error, threads=wanted.threads, progress=Bar("rows"))
        if wanted.verify:
            pack.verify(wanted.destination)
    except UserError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"\nerror: the storage fails: {storage.reason(error)}; the same command goes on from what is done", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from the shards that are done", file=sys.stderr)
        return 130
    bad = f", {len(report.bad)} of them bad" if report.bad else ""
    where = storage.shown(wanted.destination)
    print(f"\npacked {report.num_rows} rows{bad} in {report.num_shards} shards ({report.found} rows were there): {where}")
    for row, why in list(report.bad.items())[:10]:
        print(f"  {source.name(row)} {why}")
    return 0


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return at_least(1)(height), at_least(1)(width or height)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="folder of pictures or Parquet, at any fsspec URL")
    parser.add_argument("destination", help="folder to pack into, at any fsspec URL")
    parser.add_argument("--image-size", type=_size, default=(64, 64), help="side in pixels, or HEIGHTxWIDTH (64)")
    parser.add_argument("--channels", type=int, choices=(1, 3), default=3, help="3 for RGB, 1 for grey (3)")
    parser.add_argument(
        "--background", type=int, nargs=3, default=(255, 255, 255), metavar=("R", "G", "B"), help="behind transparency (white)"
    )
    parser.add_argument("--labels", choices=("none", "folder", "prefix", "column"), default="none", help="where class names are (none)")
    parser.add_argument("--image-column", default="image", help="of Parquet (image)")
    parser.add_argument("--label-column", default="label", help="of Parquet, with --labels column (label)")
    parser.add_argument(
        "--on-error", choices=("fail", "substitute"), default="fail", help="unreadable pictures: stop, or mark their rows (fail)"
    )
    parser.add_argument("--max-pixels", type=at_least(1), default=DEFAULT_MAX_PIXELS, help="pictures claiming more are unreadable")
    parser.add_argument("--rows-per-shard", type=at_least(1), help="(as many as 64 MiB hold)")
    parser.add_argument("--threads", type=at_least(1), default=os.cpu_count() or 1, help="pictures decoded at a time (one a core)")
    parser.add_argument("--verify", action="store_true", help="read every shard again and compare checksums")
    return parser


if __name__ == "__main__":
    signals.run_main(main)
