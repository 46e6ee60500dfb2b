"""What a likelihood job leaves for people and programs: a summary, values by picture, and terms by timestep."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iddpm_ray import storage
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.evaluate.nll_job import Looking, Measured
from iddpm_ray.evaluate.npz import encode
from iddpm_ray.evaluate.subject import Subject

# As the original program calls them: arr_0 [T] float32, means over pictures, the noisiest timestep first.
TERM_FILES = {"vb": "vb_terms.npz", "mse": "mse_terms.npz", "xstart_mse": "xstart_mse_terms.npz"}


def summary(measured: Measured, subject: Subject, looking: Looking) -> dict[str, Any]:
    """The result as plain JSON values."""
    estimate = measured.estimate
    return {
        "bpd": estimate.mean,
        "standard_error": estimate.standard_error if np.isfinite(estimate.standard_error) else None,
        "prior_bpd": float(measured.prior_bpd.mean()),
        "pictures": estimate.count,
        "pictures_of_the_side": estimate.population,
        "side": looking.side,
        "seed": looking.seed,
        "timesteps": "strata" if looking.strata else "all",
        "forwards": measured.forwards,
        "forwards_of_the_whole_bound": measured.forwards_whole,
        "run": storage.shown(subject.run_url),
        "checkpoint": subject.source.name,
        "step": subject.source.step,
        "weights": subject.weights,
        **({"strata": list(measured.by_stratum)} if measured.by_stratum else {}),
    }


def describe(measured: Measured, subject: Subject, looking: Looking) -> str:
    """The result in words."""
    estimate = measured.estimate
    how = "estimated" if looking.strata else "whole bound"
    share = measured.forwards / measured.forwards_whole
    cost = f"{measured.forwards:,} forwards" + (f", {100 * share:.1f} % of the whole bound's" if looking.strata else "")
    known = np.isfinite(estimate.standard_error)
    error = f"+- {estimate.standard_error:.4f}" if known else "(one picture: no standard error)"
    return (
        f"{estimate.mean:.4f} {error} bits a dimension ({how}; standard error; {estimate.count:,} of {estimate.population:,} "
        f"{looking.side} pictures, {cost}; {subject.describe()})"
    )


def target_missed(measured: Measured, target: float | None) -> str | None:
    """Why an estimate ended above the standard error that was asked for, in words; None if it did not, or nothing was asked."""
    estimate = measured.estimate
    if target is not None and estimate.unseen > target:
        return f"the standard error {target:g} cannot be had: the pictures left out alone make {estimate.unseen:.2g}; raise --count"
    if target is not None and estimate.standard_error > target:
        return f"the standard error {target:g} was not reached at the cost of the whole bound; that needs no --estimate"
    return None


def write_results(folder: str, measured: Measured, subject: Subject, looking: Looking, *, manifest: Manifest) -> list[str]:
    """Writes `summary.json`, `pictures.parquet` and, of a whole bound, the original's three npz files; returns their names."""
    files = {
        "summary.json": json.dumps(summary(measured, subject, looking), indent=1).encode(),
        "pictures.parquet": _table(measured, manifest),
        **{TERM_FILES[name]: encode({"arr_0": terms.astype(np.float32)}) for name, terms in measured.by_timestep.items()},
    }
    for name, data in files.items():
        storage.write_whole(storage.join(folder, name), data)
    return list(files)


def _table(measured: Measured, manifest: Manifest) -> bytes:
    rows = measured.rows
    table = pa.table(
        {
            "row": rows,
            "path": manifest.column("path", rows),
            "row_in_file": manifest.column("row", rows),
            "label": manifest.labels[rows],
            "bpd": measured.bpd,
            "prior_bpd": measured.prior_bpd,
            "standard_error": np.sqrt(measured.variance),
        }
    )
    file = io.BytesIO()
    pq.write_table(table.sort_by("row"), file)
    return file.getvalue()
