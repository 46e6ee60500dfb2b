"""Evaluations of a run's weights, as its section `evaluate` describes them: what is drawn, against which pictures, by which features."""

import hashlib
import json
import math

from iddpm_ray import storage
from iddpm_ray.errors import SpecError
from iddpm_ray.evaluate.assessed_files import folder_gallery, is_npz, reference_file, teach
from iddpm_ray.evaluate.assessment import Assessment, assess, earlier_result, forget_samples, write_result
from iddpm_ray.evaluate.chunks import Chunks, Worker, work_here
from iddpm_ray.evaluate.drawing import WAY, Arithmetic, Drawing, make_drawing
from iddpm_ray.evaluate.features import ClassifierFile, FeatureFile, inception_file
from iddpm_ray.evaluate.gallery import DrawnGallery, Gallery, RowsGallery
from iddpm_ray.evaluate.generate import make_job
from iddpm_ray.evaluate.measured import pinned_data
from iddpm_ray.evaluate.trained import find_source
from iddpm_ray.spec.evaluate import EvaluateSpec
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train.kept import MANIFEST_FILE
from iddpm_ray.train.sources import decoding_of

FOLDER = "evaluations"


def assessment_of_run(
    drawing: Drawing,
    *,
    run_url: str,
    wanted: EvaluateSpec,
    features: FeatureFile | None = None,
    seed: int = 0,
    features_gpu: bool = False,
) -> Assessment:
    """The evaluation of a run's weights that a section `evaluate` describes.

    Args:
        drawing: the weights, and how samples are drawn with them.
        run_url: whose pictures and labels are compared with.
        features: None for those that `wanted` names.
        features_gpu: whether the feature network runs on a GPU.

    Raises:
        UserError: weights of features, labels or pictures are missing, or the network draws nothing by itself.
    """
    spec = drawing.spec
    if drawing.enlarges:
        fix = "draw some with jobs/sample.py --base, and evaluate their npz"
        raise SpecError(f"{drawing.source.name} is a network that enlarges pictures, and there are none here", fix=fix)
    job = make_job(drawing, seed=seed, count=wanted.count, batch=wanted.batch, labels=None, base=None, threads=wanted.threads)
    features = features or features_of_run(run_url, spec, wanted=wanted)
    reference = reference_of_run(run_url, spec, wanted=wanted)
    samples = DrawnGallery(job)
    own, other = job.settings(), reference if isinstance(reference, str) else reference.settings()
    told = {"features": repr(features), "device": features_gpu}
    return Assessment(
        samples,
        reference,
        features,
        folder=storage.join(run_url, FOLDER, f"quality-{drawing.source.name}-{_digest([own, other, told, wanted.count])}"),
        reference_folder=storage.join(run_url, FOLDER, f"reference-{_digest([other, told])}"),
        seed=seed,
        device="cuda" if features_gpu else "cpu",
    )


def features_of_run(run_url: str, spec: JobSpec, *, wanted: EvaluateSpec) -> FeatureFile:
    """The features that a section `evaluate` names; a classifier is trained on the run's own labels once, and kept with the run.

    Raises:
        UserError: no Inception weights, or no labels to learn from.
    """
    if not wanted.by_classifier():
        return inception_file(wanted.inception, wanted.inception_sha256)
    url = storage.join(run_url, FOLDER, f"{wanted.features}.npz")
    if not storage.exists(url):
        teach(url, pinned_data(run_url, spec), decoding_of(spec), name=wanted.features)
    return ClassifierFile(url)


def reference_of_run(run_url: str, spec: JobSpec, *, wanted: EvaluateSpec) -> str | Gallery:
    """What a section `evaluate` holds samples against.

    Raises:
        DataError: it cannot be read.
    """
    if wanted.reference == "data":
        manifest = pinned_data(run_url, spec)
        count = len(manifest.training_rows)
        return RowsGallery(storage.join(run_url, MANIFEST_FILE), manifest.digest, decoding_of(spec), "train", count)
    if is_npz(wanted.reference):
        return reference_file(wanted.reference)
    listed = storage.join(run_url, FOLDER, f"reference-{_digest(wanted.reference)}.arrow")
    return folder_gallery(wanted.reference, size=decoding_of(spec), manifest_url=listed)


def evaluate_checkpoint(spec: JobSpec, *, run_url: str, checkpoint_url: str) -> dict[str, float]:
    """Evaluates one checkpoint of a run in this process as the run's section `evaluate` says, from where an earlier try was ended.

    Returns:
        the metrics by name, the Fréchet distance first.

    Raises:
        UserError: the checkpoint is gone, or something to compare with is missing.
    """
    wanted = spec.evaluate
    gpu = wanted.gpus > 0
    arithmetic = Arithmetic(device="cuda" if gpu else "cpu", precision=spec.optim.precision, matmul_precision=spec.optim.matmul_precision)
    drawing = make_drawing(find_source(checkpoint_url), arithmetic=arithmetic, **{name: getattr(spec.sample, name) for name in WAY})
    assessment = assessment_of_run(drawing, run_url=run_url, wanted=wanted, seed=spec.run.seed, features_gpu=gpu)
    before = earlier_result(assessment)
    if before is not None:
        return {name: math.nan if value is None else value for name, value in before["metrics"].items()}
    found = assess(assessment, _here)
    assert found is not None
    write_result(found, assessment)
    forget_samples(assessment)
    return dict(found.quality.metrics)


def _here(chunks: Chunks, worker: Worker, unit: str) -> bool:
    work_here(chunks, worker)
    return True


def _digest(said: object) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]
