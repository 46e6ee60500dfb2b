"""JobSpec: the whole spec of a run, its checks across sections, its digest, and what differs between two of them."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from iddpm_ray.spec import checks
from iddpm_ray.spec.checkpoint import CheckpointSpec
from iddpm_ray.spec.cluster import ClusterSpec
from iddpm_ray.spec.data import DataSpec
from iddpm_ray.spec.diffusion import DiffusionSpec
from iddpm_ray.spec.evaluate import EvaluateSpec
from iddpm_ray.spec.fields import as_plain, fields_of, value_of
from iddpm_ray.spec.init import InitSpec
from iddpm_ray.spec.kube import KubeSpec
from iddpm_ray.spec.log import LogSpec
from iddpm_ray.spec.mark import REQUIRED, Section
from iddpm_ray.spec.model import ModelSpec
from iddpm_ray.spec.optim import OptimSpec
from iddpm_ray.spec.problems import refuse, shown
from iddpm_ray.spec.resampler import ResamplerSpec
from iddpm_ray.spec.run import RunSpec
from iddpm_ray.spec.sample import SampleSpec
from iddpm_ray.spec.train import TrainSpec


class JobSpec(Section):
    """Everything a run is told. Defaults are those of Improved DDPM's programs."""

    run: RunSpec = Field(REQUIRED, description="what the run is called, where it lives, its seed")
    data: DataSpec = Field(REQUIRED, description="which pictures, what they are turned into, who reads them")
    model: ModelSpec = Field(default_factory=ModelSpec, description="the network")
    diffusion: DiffusionSpec = Field(default_factory=DiffusionSpec, description="the process, what is predicted of it, the loss")
    resampler: ResamplerSpec = Field(default_factory=ResamplerSpec, description="which timesteps are trained on")
    optim: OptimSpec = Field(default_factory=OptimSpec, description="AdamW, learning rate, averages, arithmetic")
    train: TrainSpec = Field(REQUIRED, description="how many samples a step, how long")
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec, description="when to save, what to keep")
    log: LogSpec = Field(default_factory=LogSpec, description="rows of numbers, where they go, validation")
    sample: SampleSpec = Field(default_factory=SampleSpec, description="pictures drawn during training and afterwards")
    evaluate: EvaluateSpec = Field(default_factory=EvaluateSpec, description="how good samples are, beside training and afterwards")
    init: InitSpec = Field(default_factory=InitSpec, description="weights to begin from, other than the seed's")
    cluster: ClusterSpec = Field(default_factory=ClusterSpec, description="workers, what each one gets, failures")
    kube: KubeSpec = Field(default_factory=KubeSpec, description="machines and pods of a run on Kubernetes")

    @model_validator(mode="after")
    def _agrees(self) -> "JobSpec":
        """Refuses a spec whose fields contradict each other.

        Raises:
            SpecError: names all of them.
        """
        batch = self.train.global_batch
        problems = [
            *checks.check_names(self.run, self.data, self.init, self.optim, self.cluster),
            *checks.check_network(self.model, self.data),
            *checks.check_labels(self.model, self.data, self.sample),
            *checks.check_diffusion(self.diffusion, self.model, self.sample, self.resampler),
            *checks.check_optim(self.optim, self.sample, global_batch=batch),
            *checks.check_init(self.init),
            *checks.check_evaluate(self.evaluate, self.checkpoint, self.model, self.data),
            *checks.check_log(self.log, self.data),
            *checks.check_cluster(self.cluster, global_batch=batch),
        ]
        refuse(problems)
        return self

    def channel_mult(self) -> tuple[float, ...]:
        """Width of each level as a multiple of model.num_channels."""
        mult = checks.widths(self.model, self.data)
        assert mult is not None, "refused when the spec was made"
        return mult

    def picture_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a picture, [C, H, W]."""
        return (self.data.channels, *self.data.height_width())

    def low_res_height_width(self) -> tuple[int, int] | None:
        """Height and width of the small picture that a super-resolution network is given; None for any other."""
        if self.model.low_res_size is None:
            return None
        height, width = self.data.height_width()
        factor = max(height, width) // self.model.low_res_size
        return height // factor, width // factor

    def with_num_classes(self, num_classes: int) -> "JobSpec":
        """The same spec with the number of classes that the data set turned out to have.

        Raises:
            SpecError: if a class to be drawn is not among them.
        """
        return JobSpec.model_validate({**dict(self), "model": self.model.model_copy(update={"num_classes": num_classes})})

    def digest(self) -> str:
        """SHA-256 over the identity fields, as hexadecimal: equal for specs that compute the same run."""
        values = {
            field.path: as_plain(value_of(self, field))
            for field in fields_of(JobSpec)
            if field.mark == "identity" and not (field.later and value_of(self, field) == field.default)
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


@dataclass(frozen=True)
class FieldChange:
    """A field that two specs disagree on; values as a file would hold them."""

    path: str
    old: Any
    new: Any
    identity: bool

    def __str__(self) -> str:
        return f"{self.path}: {shown(self.old)} -> {shown(self.new)}{' (identity)' if self.identity else ''}"


def differences(old: JobSpec, new: JobSpec) -> list[FieldChange]:
    """The fields whose values differ, in the order of the spec."""
    changes: list[FieldChange] = []
    for field in fields_of(JobSpec):
        before, after = as_plain(value_of(old, field)), as_plain(value_of(new, field))
        if before != after:
            changes.append(FieldChange(field.path, before, after, field.mark == "identity"))
    return changes
