"""The likelihood of a run's pictures, chunk by chunk over workers, until all are done or the error is small enough."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from iddpm_ray import build, storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.manifest import Manifest
from iddpm_ray.evaluate.chunks import Chunks, claim
from iddpm_ray.evaluate.nll_job import (
    Looking,
    Measured,
    NllWorker,
    chunks_a_pass,
    enough,
    first_goal,
    hopeless,
    measured_drawn,
    measured_whole,
    next_goal,
    only,
)
from iddpm_ray.evaluate.rows import choose_rows
from iddpm_ray.evaluate.strata import DRAWS_A_PASS, MOST_DRAWS, make_strata
from iddpm_ray.evaluate.subject import Subject
from iddpm_ray.runtime import cluster
from iddpm_ray.runtime.chunks import OBJECT_STORE_GIB, Pool, run_chunks
from iddpm_ray.train.kept import MANIFEST_FILE


@dataclass(frozen=True)
class Found:
    """A finished job: its folder, and what it found."""

    folder: str
    measured: Measured


def run_nll(
    subject: Subject, looking: Looking, *, manifest: Manifest, folder: str | None, pool: Pool, target_se: float | None
) -> Found | None:
    """Does what is missing of a job, and says what it found; None if somebody stopped it, and the same call goes on.

    Args:
        folder: where its chunks and results go; None for a folder of the run that only this very job has.
        target_se: of an estimate: the standard error at which to stop. Pictures are drawn anew, in further passes, once all have been
            looked at, up to the cost of the whole bound, unless too few were chosen of the side for so small an error.

    Raises:
        UserError: what a person has to mend.
    """
    chosen = choose_rows(manifest, looking.side, count=looking.count, seed=looking.seed)
    timesteps = build.diffusion(subject.spec.diffusion).num_timesteps
    strata = make_strata(timesteps, count=max(1, looking.strata))
    each = chunks_a_pass(len(chosen.rows), looking.batch)
    passes = 1 if target_se is None else max(1, min(timesteps // (DRAWS_A_PASS * len(strata)), MOST_DRAWS // DRAWS_A_PASS))
    settings = _settings(subject, looking, manifest=manifest, pool=pool)
    folder = folder or storage.join(subject.run_url, "evaluations", f"nll-{subject.source.name}-{_digest(settings)}")
    storage.check_writable(storage.absolute(folder), field="--out")
    claimed = claim(folder, settings, count=each * looking.batch, size=looking.batch, extension="npz")
    chunks = Chunks(claimed.url, each * looking.batch * passes, looking.batch, "npz")
    manifest_url = storage.join(chunks.url, MANIFEST_FILE)
    manifests.write(manifest, manifest_url)
    worker = NllWorker(subject, looking, manifest_url, "cuda" if pool.gpus else "cpu")

    def read(count: int) -> Measured:
        parts = list(only(chunks, count).read_all())
        if not looking.strata:
            return measured_whole(parts, population=chosen.population, num_timesteps=timesteps)
        kinds = {"strata": strata, "num_rows": len(chosen.rows), "batch": looking.batch}
        return measured_drawn(parts, population=chosen.population, num_timesteps=timesteps, **kinds)

    def work() -> Measured | None:
        goal = each if target_se is None else first_goal(len(chosen.rows), looking.batch)
        while True:
            if not run_chunks(only(chunks, goal), worker, pool=pool, unit="pictures"):
                return None
            found = read(goal)
            if target_se is None or goal == chunks.num_chunks or enough(found, target=target_se):
                return found
            if hopeless(found, num_rows=len(chosen.rows), target=target_se):
                return found
            goal = next_goal(found, done=goal, each=each, most=chunks.num_chunks, target=target_se)

    if pool.workers == 0 or target_se is None:
        found = work()
    else:
        with cluster.joined(pool.address, object_store_gib=OBJECT_STORE_GIB):  # once for all waves
            found = work()
    return None if found is None else Found(chunks.url, found)


def _settings(subject: Subject, looking: Looking, *, manifest: Manifest, pool: Pool) -> dict[str, Any]:
    return {
        "job": "nll",
        **subject.settings(),
        "data": manifest.digest,
        "rows": looking.side,
        "pictures": looking.count or "all",
        "seed": looking.seed,
        "strata": looking.strata or "all timesteps",
        "clip": looking.clip,
        "threads": pool.threads,
        "gpus": pool.gpus > 0,
        "batch": looking.batch,
    }


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
