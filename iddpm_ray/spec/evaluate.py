"""Section `evaluate`: how good the run's samples are, while it trains and afterwards."""

from iddpm_ray.spec.duration import Interval
from iddpm_ray.spec.mark import Section, may_change

CLASSIFIER_ENDING = "-classifier"


class EvaluateSpec(Section):
    """How good the run's samples are, drawn as section `sample` says; beside training only where nothing else needs the room."""

    every: Interval | None = may_change(
        None, "evaluate the first checkpoint after each multiple of this, and the last one; null: never", unit="duration"
    )
    count: int = may_change(5000, "samples an evaluation draws", unit="samples", ge=4)
    batch: int = may_change(64, "samples drawn together", unit="samples", ge=1)
    features: str = may_change(
        "inception",
        "compared by: inception (FID), or NAME-classifier, a small one trained on the run's labels and named by every metric",
        unit="choice",
        pattern=r"^(inception|[a-z0-9][a-z0-9-]*-classifier)$",
    )
    inception: str | None = may_change(None, "file of the Inception weights; nothing is downloaded by itself", unit="URL", min_length=1)
    inception_sha256: str | None = may_change(None, "SHA-256 of that file", unit="hexadecimal", pattern=r"^[0-9a-fA-F]{64}$")
    reference: str = may_change(
        "data", "held against: data, the run's own training pictures, an npz of statistics or pictures, or a folder of pictures", unit="URL"
    )
    cpus: float = may_change(1.0, "logical CPUs that an evaluation takes, beyond what training has declared", unit="CPUs", gt=0)
    gpus: float = may_change(0.0, "GPUs that an evaluation takes, beyond what training has declared", unit="GPUs", ge=0)
    threads: int = may_change(1, "threads that torch uses in an evaluation", unit="threads", ge=1)

    def by_classifier(self) -> bool:
        """Whether samples are compared by a small classifier of the run's own labels."""
        return self.features.endswith(CLASSIFIER_ENDING)
