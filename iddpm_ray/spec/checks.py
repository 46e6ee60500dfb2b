"""Fields that contradict each other, found by arithmetic before anything is rented; each check returns the problems it finds."""

import re
from collections.abc import Iterator, Sequence

from iddpm_ray import storage
from iddpm_ray.spec.checkpoint import CheckpointSpec
from iddpm_ray.spec.cluster import ClusterSpec
from iddpm_ray.spec.data import DataSpec
from iddpm_ray.spec.diffusion import DiffusionSpec
from iddpm_ray.spec.evaluate import EvaluateSpec
from iddpm_ray.spec.init import InitSpec
from iddpm_ray.spec.log import LogSpec
from iddpm_ray.spec.model import CHANNEL_MULT, ModelSpec
from iddpm_ray.spec.optim import OptimSpec
from iddpm_ray.spec.problems import Problem
from iddpm_ray.spec.resampler import ResamplerSpec
from iddpm_ray.spec.respacing import count_timesteps
from iddpm_ray.spec.run import RunSpec
from iddpm_ray.spec.sample import SampleSpec

CREDENTIALS = (
    "holds credentials, and a URL is saved and shown: leave them to the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, "
    "fsspec's configuration) or to the role of the machine"
)
GROUPS = 32  # of every group normalisation


def check_names(run: RunSpec, data: DataSpec, init: InitSpec, optim: OptimSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    """Names and URLs that could never be opened by all workers."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run.name) or ".." in run.name:
        yield Problem(
            "run.name", run.name, "should be 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit, without '..'"
        )
    for path, url in (
        ("run.output_dir", run.output_dir),
        ("data.path", data.path),
        ("init.from", init.from_),
        ("optim.compile_cache", optim.compile_cache),
        ("cluster.address", cluster.address),
    ):
        if url is None:
            continue
        if not url or url != url.strip() or not url.isprintable():
            yield Problem(path, url, "should not be empty, nor hold control characters or spaces at its ends")
        elif storage.carries_credentials(url):
            yield Problem(path, storage.shown(url), CREDENTIALS)
        elif any(part.strip().lower().startswith("memory:") for part in url.split("::")):
            yield Problem(
                path,
                url,
                "lives in the memory of one process: use a path, gs://, s3:// or another store that all workers reach",
            )
        elif path == "run.output_dir" and "::" in url:
            yield Problem(path, url, "should not hold '::', by which fsspec chains file systems (zip::…): the run would go elsewhere")


def widths(model: ModelSpec, data: DataSpec) -> tuple[float, ...] | None:
    """Width multipliers of the levels; None if the spec has none and the picture size is not a known one."""
    return model.channel_mult or CHANNEL_MULT.get(max(data.height_width()))


def check_network(model: ModelSpec, data: DataSpec) -> Iterator[Problem]:
    """Shapes that do not divide: picture sides, channels, attention and its heads."""
    height, width = data.height_width()
    side, mult = max(height, width), widths(model, data)
    if mult is None:
        known = ", ".join(map(str, sorted(CHANNEL_MULT)))
        yield Problem(
            "model.channel_mult", None, f"is needed for pictures of {side} pixels (null is known for {known}): a list such as [1, 2, 2]"
        )
        return
    factor = 2 ** (len(mult) - 1)
    if height % factor or width % factor:
        odd = height if height % factor else width
        fitting = [size for size in (odd // factor * factor, (odd // factor + 1) * factor) if size]
        yield Problem(
            "data.image_size",
            data.image_size,
            f"{odd} should be a multiple of {factor}, as {len(mult)} levels halve it {len(mult) - 1} times: "
            f"{' or '.join(map(str, fitting))}, or a shorter model.channel_mult",
        )
        return
    channels = [model.num_channels * times for times in mult]
    if model.num_channels % GROUPS:
        near = max(round(model.num_channels / GROUPS), 1) * GROUPS
        yield Problem("model.num_channels", model.num_channels, f"should be a multiple of {GROUPS} (group normalisation), such as {near}")
    elif any(count % GROUPS for count in channels):
        bad = next(times for times, count in zip(mult, channels, strict=True) if count % GROUPS)
        yield Problem(
            "model.channel_mult",
            list(mult),
            f"{bad:g} x {model.num_channels} = {bad * model.num_channels:g} channels, not a multiple of {GROUPS}",
        )
    else:
        yield from _check_attention(
            model, sizes=[side // 2**level for level in range(len(mult))], channels=[int(count) for count in channels]
        )
    if model.resblock_updown and not model.conv_resample:
        yield Problem("model.conv_resample", False, "has no effect with model.resblock_updown, which resamples in residual blocks")
    yield from _check_low_res(model, data)


def _check_attention(model: ModelSpec, *, sizes: Sequence[int], channels: Sequence[int]) -> Iterator[Problem]:
    asked = model.attention_resolutions
    if len(set(asked)) < len(asked):
        yield Problem("model.attention_resolutions", list(asked), "names a size twice")
    for size in asked:
        if size not in sizes:
            fix = f"no level has size {size}: the levels of this network have {', '.join(map(str, sizes))}"
            yield Problem("model.attention_resolutions", list(asked), fix)
    if model.num_heads_upsample == 0:
        yield Problem("model.num_heads_upsample", 0, "should be at least 1, or -1 for as many as model.num_heads")
        return
    at = {f"at size {size}": count for size, count in zip(sizes, channels, strict=True) if size in asked}
    everywhere = {**at, "in the middle block": channels[-1]}
    if model.num_head_channels is not None:
        yield from _check_heads("model.num_head_channels", model.num_head_channels, everywhere)
        usual = ModelSpec()
        for path, value, default in (
            ("model.num_heads", model.num_heads, usual.num_heads),
            ("model.num_heads_upsample", model.num_heads_upsample, usual.num_heads_upsample),
        ):
            if value != default:
                yield Problem(path, value, "has no effect with model.num_head_channels, which decides the heads of every width")
        return
    yield from _check_heads("model.num_heads", model.num_heads, everywhere)
    if model.num_heads_upsample != -1:
        yield from _check_heads("model.num_heads_upsample", model.num_heads_upsample, at)


def _check_heads(path: str, heads: int, channels: dict[str, int]) -> Iterator[Problem]:
    for where, count in channels.items():
        if count % heads:
            fitting = [number for number in range(1, 65) if all(every % number == 0 for every in channels.values())]
            near = sorted(sorted(fitting, key=lambda number: abs(number - heads))[:3])
            yield Problem(path, heads, f"does not divide the {count} channels of attention {where}: {', '.join(map(str, near))} would do")
            return


def _check_low_res(model: ModelSpec, data: DataSpec) -> Iterator[Problem]:
    height, width = data.height_width()
    side, low = max(height, width), model.low_res_size
    if model.kind == "unet":
        if model.low_res_noise:
            yield Problem("model.low_res_noise", model.low_res_noise, "has no effect on model.kind=unet")
        if low is not None:
            yield Problem("model.low_res_size", low, "has no effect on model.kind=unet: leave it out, or set model.kind=superres")
    elif low is None:
        yield Problem(
            "model.low_res_size",
            None,
            "is needed by model.kind=superres: the longer side of the small picture, such as " + str(max(side // 4, 1)),
        )
    elif low >= side:
        yield Problem("model.low_res_size", low, f"should be smaller than data.image_size, {side}")
    elif side % low or height % (side // low) or width % (side // low):
        yield Problem("model.low_res_size", low, f"should divide the picture, {height} x {width}, by a whole factor, such as {side // 2}")


def check_labels(model: ModelSpec, data: DataSpec, sample: SampleSpec) -> Iterator[Problem]:
    """Classes that nobody names, and options of a class-conditional network on one that is not."""
    if data.label_column != "label" and data.labels != "column":
        yield Problem("data.label_column", data.label_column, "has no effect without data.labels=column")
    if model.class_cond and data.labels == "none":
        yield Problem("model.class_cond", True, "needs labels: set data.labels to folder, prefix or column")
    if not model.class_cond:
        for path, value, default in (
            ("model.num_classes", model.num_classes, None),
            ("model.class_dropout", model.class_dropout, 0.0),
            ("sample.classes", sample.classes, None),
        ):
            if value != default:
                yield Problem(path, value, "has no effect without model.class_cond=true")
    if sample.guidance_interval is not None and sample.guidance == 1.0:
        yield Problem("sample.guidance_interval", list(sample.guidance_interval), "has no effect without sample.guidance")
    if sample.low_res_noise > model.low_res_noise:
        fix = f"should be at most model.low_res_noise, {model.low_res_noise}: the network has met no higher level"
        yield Problem("sample.low_res_noise", sample.low_res_noise, fix)
    if sample.guidance != 1.0 and model.class_dropout == 0:
        yield Problem("sample.guidance", sample.guidance, "needs a network trained with model.class_dropout above 0, such as 0.1")
    if model.class_cond and model.num_classes is not None and sample.classes is not None:
        beyond = [index for index in sample.classes if index >= model.num_classes]
        if beyond:
            yield Problem(
                "sample.classes", list(sample.classes), f"has {beyond[0]}, but classes are 0 to {model.num_classes - 1} (model.num_classes)"
            )


def check_diffusion(diffusion: DiffusionSpec, model: ModelSpec, sample: SampleSpec, resampler: ResamplerSpec) -> Iterator[Problem]:
    """Processes that cannot exist, or that nothing can be learned from."""
    timesteps = diffusion.timesteps
    if model.low_res_noise > timesteps:
        yield Problem("model.low_res_noise", model.low_res_noise, f"should be at most diffusion.timesteps, {timesteps}")
    if sample.guidance_interval is not None:
        low, high = sample.guidance_interval
        if not low <= high < timesteps:
            fix = f"should be two timesteps, low and high, of 0 to {timesteps - 1}"
            yield Problem("sample.guidance_interval", [low, high], fix)
    if timesteps == 1:
        yield Problem("diffusion.timesteps", 1, "should be at least 2: nothing can be trained on a process of one timestep")
        return
    if diffusion.schedule == "linear" and timesteps <= 20:
        fix = f"the last beta of a linear schedule, 20 / timesteps = {20 / timesteps:g}, has to be below 1: use 21 or more, or cosine"
        yield Problem("diffusion.timesteps", timesteps, fix)
    for path, respacing in (("diffusion.respacing", diffusion.respacing), ("sample.respacing", sample.respacing)):
        try:
            left = count_timesteps(timesteps, respacing)
        except ValueError as error:
            yield Problem(path, respacing, str(error))
            continue
        if left == 1 and path == "diffusion.respacing":
            yield Problem(path, respacing, "leaves one timestep, on which nothing can be trained (sample.respacing may do that)")
    if resampler.kind == "uniform":
        usual = ResamplerSpec()
        for path, value, default in (
            ("resampler.history", resampler.history, usual.history),
            ("resampler.uniform_prob", resampler.uniform_prob, usual.uniform_prob),
        ):
            if value != default:
                yield Problem(path, value, "has no effect without resampler.kind=loss_second_moment")


def check_optim(optim: OptimSpec, sample: SampleSpec, *, global_batch: int) -> Iterator[Problem]:
    """Learning-rate schedules without a length, averages named twice or not kept, and a microbatch beyond the batch."""
    if optim.schedule == "constant" and optim.anneal is not None:
        yield Problem("optim.anneal", str(optim.anneal), "has no effect with optim.schedule=constant: set it to linear or cosine")
    if optim.schedule != "constant" and optim.anneal is None:
        yield Problem(
            "optim.anneal",
            None,
            f'is needed by optim.schedule={optim.schedule}: the length over which the rate falls to 0, such as "100k steps"',
        )
    if len(set(optim.ema_rates)) < len(optim.ema_rates):
        yield Problem("optim.ema_rates", list(optim.ema_rates), "names a rate twice")
    if sample.ema is not None and sample.ema not in optim.ema_rates:
        yield Problem("sample.ema", sample.ema, f"should be one of optim.ema_rates, {list(optim.ema_rates)}, or null for the raw weights")
    if sample.eta != 0 and sample.method != "ddim":
        yield Problem("sample.eta", sample.eta, "has no effect without sample.method=ddim")
    if optim.fp16_scale_growth != OptimSpec().fp16_scale_growth and optim.precision != "fp16":
        yield Problem("optim.fp16_scale_growth", optim.fp16_scale_growth, "has no effect without optim.precision=fp16")
    if optim.compile_cache is not None and not optim.compile:
        yield Problem("optim.compile_cache", optim.compile_cache, "has no effect without optim.compile=true")
    if isinstance(optim.microbatch, int) and optim.microbatch > global_batch:
        yield Problem("optim.microbatch", optim.microbatch, f"should be at most train.global_batch, {global_batch}")


def check_init(init: InitSpec) -> Iterator[Problem]:
    """Options of a checkpoint that is not named."""
    if init.from_ is None:
        usual = InitSpec()
        for path, value, default in (
            ("init.weights", init.weights, usual.weights),
            ("init.only", init.only, usual.only),
            ("init.skip", init.skip, usual.skip),
            ("init.sha256", init.sha256, usual.sha256),
        ):
            if value != default:
                yield Problem(path, value, "has no effect without init.from")


def check_evaluate(evaluate: EvaluateSpec, checkpoint: CheckpointSpec, model: ModelSpec, data: DataSpec) -> Iterator[Problem]:
    """Evaluations without weights, labels or pictures to draw, and options of one that is not wanted."""
    for path, url in (("evaluate.inception", evaluate.inception), ("evaluate.reference", evaluate.reference)):
        if url is not None and storage.carries_credentials(url):
            yield Problem(path, storage.shown(url), CREDENTIALS)
    if evaluate.by_classifier():
        for path, value in (("evaluate.inception", evaluate.inception), ("evaluate.inception_sha256", evaluate.inception_sha256)):
            if value is not None:
                yield Problem(path, value, f"has no effect with evaluate.features={evaluate.features}")
    elif evaluate.inception is not None and evaluate.inception_sha256 is None:
        yield Problem("evaluate.inception_sha256", None, "is needed beside evaluate.inception: the checksum that sha256sum prints")
    elif evaluate.inception is None and evaluate.inception_sha256 is not None:
        yield Problem("evaluate.inception_sha256", evaluate.inception_sha256, "has no effect without evaluate.inception")
    if evaluate.every is None:
        if checkpoint.keep_best:
            yield Problem("checkpoint.keep_best", checkpoint.keep_best, "needs evaluate.every, which says which checkpoints are best")
        return
    if model.kind != "unet":
        yield Problem("evaluate.every", str(evaluate.every), "needs a network that draws by itself, which model.kind=superres does not")
    if evaluate.by_classifier() and data.labels == "none":
        yield Problem("evaluate.features", evaluate.features, "needs labels to learn from: set data.labels to folder, prefix or column")
    if not evaluate.by_classifier() and evaluate.inception is None:
        yield Problem(
            "evaluate.inception",
            None,
            "is needed by evaluate.every: the path or URL of weights-inception-2015-12-05-6726825d.pth, which torch-fidelity publishes "
            "(nothing is downloaded by itself), or set evaluate.features=digits-classifier for small labelled pictures",
        )


def check_log(log: LogSpec, data: DataSpec) -> Iterator[Problem]:
    """Validation without held-out rows, options without effect, and trackers that are named twice or nowhere to be found."""
    if log.validate_every is None:
        if log.validate_rows != LogSpec().validate_rows:
            yield Problem("log.validate_rows", log.validate_rows, "has no effect without log.validate_every")
    elif data.validation_fraction == 0:
        yield Problem("log.validate_every", str(log.validate_every), "needs held-out rows: set data.validation_fraction, such as 0.05")
    if len(set(log.sinks)) < len(log.sinks):
        yield Problem("log.sinks", list(log.sinks), "names one twice")
    if log.project != LogSpec().project and not log.sinks:
        yield Problem("log.project", log.project, "has no effect without log.sinks")
    if log.mlflow_url is None:
        if "mlflow" in log.sinks:
            fix = "is needed by log.sinks=[mlflow]: the tracking server (https://...), or a directory that the workers reach"
            yield Problem("log.mlflow_url", None, fix)
    elif "mlflow" not in log.sinks:
        yield Problem("log.mlflow_url", storage.shown(log.mlflow_url), "has no effect without mlflow in log.sinks")
    elif storage.carries_credentials(log.mlflow_url):
        fix = "holds credentials, and a spec is saved and shown: leave them to MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
        yield Problem("log.mlflow_url", storage.shown(log.mlflow_url), fix + "MLFLOW_TRACKING_TOKEN, of the workers' environment")


def check_cluster(cluster: ClusterSpec, *, global_batch: int) -> Iterator[Problem]:
    """Workers without samples, meshes that do not divide, and GPUs that cannot be shared."""
    low, high = cluster.worker_range()
    if low > high:
        yield Problem("cluster.workers", list(cluster.worker_range()), f"should be [min, max]: [{high}, {low}]")
        return
    if low == high and cluster.grow_every_s != ClusterSpec().grow_every_s:
        yield Problem("cluster.grow_every_s", cluster.grow_every_s, "has no effect unless cluster.workers is [min, max]")
    if global_batch < high:
        yield Problem("train.global_batch", global_batch, f"should be at least the number of workers, {high}, so that each has a sample")
    for axis, size, why in (("fsdp", cluster.mesh.fsdp, "sharding"), ("tensor", cluster.mesh.tensor, "splitting layers")):
        if size != 1:
            yield Problem(f"cluster.mesh.{axis}", size, f"should be 1: {why} is not built yet, every worker holds a whole replica")
    if cluster.mesh.data == 0 or (cluster.mesh.data != -1 and not low == high == cluster.mesh.data):
        have = str(high) if low == high else f"{low} to {high}"
        fix = f"should be -1, or cluster.workers where that is one number: data x fsdp x tensor has to be the workers, {have}"
        yield Problem("cluster.mesh.data", cluster.mesh.data, fix)
    gpus = cluster.gpus_per_worker
    if gpus > 1:
        yield Problem("cluster.gpus_per_worker", gpus, "should be 0 or 1: a worker drives one GPU, so ask for more workers")
    elif gpus not in (0, 1) and high > 1:
        yield Problem("cluster.gpus_per_worker", gpus, "should be 0 or 1 with several workers: NCCL does not let two of them share a GPU")
    if cluster.accelerator_type is not None and gpus == 0:
        yield Problem("cluster.accelerator_type", cluster.accelerator_type, "has no effect without cluster.gpus_per_worker=1")
    if cluster.object_store_gib is not None and cluster.address is not None:
        yield Problem(
            "cluster.object_store_gib",
            cluster.object_store_gib,
            "has no effect on a cluster that is joined: leave it or cluster.address out",
        )
