"""What a spec does, seen from outside: everything it builds, decides, writes and hands to torch and Ray, without training or Ray itself."""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from torch import Tensor, nn

from iddpm_ray import stats
from iddpm_ray.checkpoint.commit import checkpoint_at
from iddpm_ray.checkpoint.saver import SaveOutcome
from iddpm_ray.data import manifest as manifests
from iddpm_ray.errors import TrainError, UserError
from iddpm_ray.evaluate import assessed_files, assessed_run
from iddpm_ray.evaluate.drawing import WAY, Arithmetic, make_drawing
from iddpm_ray.evaluate.due import next_due
from iddpm_ray.evaluate.trained import Source
from iddpm_ray.kube import render
from iddpm_ray.plan import make_plan
from iddpm_ray.runtime import attempt as attempts
from iddpm_ray.runtime import cluster, evaluations, launch, metrics, stream
from iddpm_ray.runtime.board import News
from iddpm_ray.runtime.cluster import Capacity
from iddpm_ray.runtime.ending import Ending
from iddpm_ray.runtime.sources import RaySources
from iddpm_ray.sinks import guard
from iddpm_ray.sinks.pictures import PictureSink
from iddpm_ray.sinks.rows import Begun
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.train import preview, save, setup
from iddpm_ray.train.begin import begin_from
from iddpm_ray.train.compiled import CompiledCode
from iddpm_ray.train.directory import MANIFEST_FILE, Opening, Place, inspect_run, take_place, write_run
from iddpm_ray.train.optim import Update
from iddpm_ray.train.record import Recorder, open_sink
from iddpm_ray.train.session import LocalSession, Wish
from iddpm_ray.train.setup import Kit
from iddpm_ray.train.sources import LocalSources
from iddpm_ray.train.step import StepOutcome

MANY_STEPS = range(1, 13)


def observe(spec: JobSpec, *, other_data: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Everything at once, as plain values that can be compared.

    Args:
        other_data: a data set that an existing run is made to be pinned to, to see what a second start says.
    """
    shutil.rmtree(spec.run.output_dir, ignore_errors=True)
    opening = inspect_run(spec)
    session = LocalSession()
    sources = LocalSources.of(spec, opening.manifest, rank=0, world_size=1)
    kit = setup.make(spec, session, sources=sources, known_microbatch=lambda device, slice_samples: None)
    seen: dict[str, Any] = {
        "directory": opening.url,
        "plan": make_plan(spec, opening.manifest, begins="").describe(),
        "manifest": [opening.manifest.digest, opening.manifest.root, opening.manifest.image_column, opening.manifest.classes],
        "labels": opening.manifest.labels.tolist(),
        "split": opening.manifest.validation_rows.tolist(),
        "held out": sources.num_validation,
        "block": sources.share.block_steps,
        "pixels": _pixels(sources),
    }
    seen |= _built(spec, kit)
    seen |= _torch_flags()
    seen["draws"] = _draws(spec, kit, session, sources, monkeypatch)
    seen["first weights"] = _begun(spec, kit)
    write_run(opening)
    place = take_place(opening, info={})
    seen["saves"] = _saves(spec, kit, place, session, monkeypatch)
    seen["rows"], seen["trackers"], seen["gives up"] = _rows(spec, kit, place, session, monkeypatch)
    seen["files"] = sorted({_stable(path.relative_to(opening.url)) for path in Path(opening.url).rglob("*") if path.is_file()})
    seen["evaluation"] = _evaluation(spec, opening, monkeypatch)
    seen |= _driver(spec, opening, place, sources, monkeypatch)
    seen["second start"] = _second_start(spec, opening, other_data)
    seen["pods"] = _pods(spec)
    return seen


def _built(spec: JobSpec, kit: Kit) -> dict[str, Any]:
    state = kit.state
    model = state.model
    batch = spec.train.global_batch
    for _ in range(12):
        everything = torch.arange(state.diffusion.num_timesteps)
        state.resampler.update(everything, everything.float() + 1)
    return {
        "parameters": {name: (tuple(p.shape), p.is_contiguous()) for name, p in model.named_parameters()},
        "modules": {name: (type(module).__name__, _plain(module)) for name, module in model.named_modules()},
        "compiled": model._compiled_call_impl is not None,
        "compiled code": None if (code := CompiledCode.of(spec, "run", device=torch.device("cpu"))) is None else code.url,
        "weights of the seed": _digest(dict(model.named_parameters())),
        "diffusion": {name: _value(value) for name, value in vars(state.diffusion).items()},
        "resampler": [
            type(state.resampler).__name__,
            {name: tuple(value.shape) for name, value in state.resampler.state_dict().items()},
            _digest({"weights": state.resampler.weights()}),
        ],
        "adamw": {name: value for name, value in state.optimizer.defaults.items() if name in ("betas", "eps")},
        "averages": sorted(state.ema.averages),
        "loss scale": (_value(state.scale.log2), state.scale.growth),
        "learning rate": [kit.learning_rate.at(before=step * batch, after=(step + 1) * batch) for step in range(12)],
        "due": [kit.clock.due(step) for step in MANY_STEPS],
        "steps": kit.clock.total_steps(),
        "own": kit.own,
        "augmentation": kit.augmentation,
        "step": {name: value for name, value in vars(kit.step_settings).items() if name != "phase"},
    }


def _torch_flags() -> dict[str, Any]:
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }


def _pixels(sources: LocalSources) -> str:
    """A digest of every picture of two steps, or what was said instead."""
    try:
        batches = list(sources.batches(start_step=0, stop_step=5))
    except UserError as error:
        return str(error)
    return (
        f"{_digest({'pixels': torch.cat([batch.pixels for batch in batches])})}, {sum(batch.substituted for batch in batches)} substituted"
    )


def _draws(spec: JobSpec, kit: Kit, session: LocalSession, sources: LocalSources, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How a preview would be drawn."""
    seen: dict[str, Any] = {}

    def draw_pictures(diffusion: Any, network: Any, *, indices: Tensor, shape: Any, cond: Mapping[str, Tensor], **options: Any) -> Tensor:
        seen.update(options, timesteps=diffusion.num_timesteps, indices=indices.tolist(), shape=shape)
        seen["cond"] = {name: _digest({"": value}) for name, value in cond.items()}
        seen["weights"] = _digest(dict(kit.state.model.named_parameters()))
        return torch.zeros(len(indices), *shape)

    with monkeypatch.context() as patch:
        patch.setattr(preview, "draw_pictures", draw_pictures)
        for averages in kit.state.ema.averages.values():
            torch._foreach_add_(averages, 1.0)
        preview.draw(spec, kit, session, sources=sources)
    return seen


def _begun(spec: JobSpec, kit: Kit) -> str:
    if spec.init.from_ is None:
        return "of the seed"
    try:
        begin_from(spec.init, kit.state, group=None)
    except UserError as error:
        return str(error)
    return _digest(dict(kit.state.model.named_parameters()))


def _saves(spec: JobSpec, kit: Kit, place: Place, session: LocalSession, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the asynchronous saver and the sweep of old checkpoints are told."""
    seen: dict[str, Any] = {}

    class FailingSaver:
        """Takes note of what it is told; none of its saves is committed."""

        def __init__(self, url: str, **options: Any) -> None:
            seen.update(options)
            self.outcome: SaveOutcome | None = None

        def start(self, step: int, **given: Any) -> None:
            self.outcome = SaveOutcome(step, False, f"step {step}", error="planted")

        def wait(self) -> SaveOutcome | None:
            return self.outcome

    def sweep(url: str, **options: Any) -> Any:
        seen["swept"] = {name: value for name, value in options.items() if name != "fence"}
        return SimpleNamespace(failed=())

    with monkeypatch.context() as patch:
        patch.setattr(save, "AsyncSaver", FailingSaver)
        patch.setattr(save.retention, "sweep", sweep)
        statistics = stats.use(stats.Statistics())
        saver = save.Saver(spec, kit, place, session, statistics=statistics, sink=None, group=None)
        seen["after_commit"](checkpoint_at(place.url, step=1, attempt=place.attempt))
        before = kit.state.step
        try:
            for kit.state.step in MANY_STEPS:
                saver.start()
            seen["unsaved"] = "goes on"
        except TrainError as error:
            seen["unsaved"] = str(error)
        kit.state.step = before
    return {name: seen[name] for name in ("asynchronous", "patience_s", "swept", "unsaved")}


def _rows(
    spec: JobSpec, kit: Kit, place: Place, session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[Any], str]:
    """The columns of a row, the trackers it goes to, and what is said after five skipped steps."""
    statistics = stats.use(stats.Statistics())
    opened: list[Any] = []
    with monkeypatch.context() as patch:  # a tracker's sink takes note of what it would open
        patch.setattr(
            guard,
            "TrackerSink",
            lambda which, url, **options: opened.append((which, options["open_tracker"])) or PictureSink(url, attempt=1),
        )
        sink = open_sink(spec, place, session, lineage=[Begun(place.attempt)])
    recorder = Recorder(spec, kit, place, session, statistics=statistics, sink=sink)
    t = torch.arange(kit.state.diffusion.num_timesteps)
    ones = torch.ones(len(t))
    recorder.observe(StepOutcome(t, ones, ones, ones, None, torch.zeros(1), Update(torch.ones(()), torch.zeros(()))))
    kit.state.step = 1
    recorder.row(lr=0.0)
    assert sink is not None
    sink.commit(1)
    said = "nothing"
    kit.state.health.streak.fill_(5)
    try:
        recorder.row(lr=0.0)
    except TrainError as error:
        said = str(error)
    recorder.close()
    told: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr("iddpm_ray.sinks.wandb.WandbTracker", lambda *_, **options: told.append(options))
        patch.setattr("iddpm_ray.sinks.mlflow.MlflowTracker", lambda *_, **options: told.append(options))
        for _, begin in opened:
            begin()
    config = [one.pop("config") for one in told]
    assert all(one["run"]["name"] == spec.run.name for one in config)
    return sorted(session.rows[0]), [[which for which, _ in opened], told], said


def _evaluation(spec: JobSpec, opening: Opening, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Which of twelve checkpoints would be evaluated, what Ray is asked for, and how samples would be judged."""
    rows = len(opening.manifest.training_rows)
    planned = evaluations.Evaluations.of(spec, run_url=opening.url, rows_per_epoch=rows, show=lambda line: None)
    if planned.every is None:
        return None
    there = [checkpoint_at(opening.url, step=step, attempt=1) for step in MANY_STEPS]
    batch = spec.train.global_batch
    seen: dict[str, Any] = {
        "due": [next_due(there[:count], every=planned.every, global_batch=batch, done=()) for count in MANY_STEPS],
        "declared": evaluations.declared(spec),
    }

    class Evaluator:
        @staticmethod
        def options(**options: Any) -> Any:
            seen.update(options)
            ready = SimpleNamespace(remote=lambda *_: None)
            return SimpleNamespace(remote=lambda threads: seen.update(threads=threads) or SimpleNamespace(evaluate=ready, ready=ready))

    with monkeypatch.context() as patch:
        patch.setattr(evaluations, "_Evaluator", Evaluator)
        planned._begin(there[0], "ab" * 28)
        patch.setattr(assessed_files, "save_classifier", lambda *_, **__: None)
        del seen["scheduling_strategy"]
        classes = tuple(opening.manifest.classes)
        source = Source(there[0].url, there[0].name, "digest", 1, spec, classes)
        drawing = make_drawing(source, arithmetic=Arithmetic(), **{name: getattr(spec.sample, name) for name in WAY})
        try:
            found = assessed_run.assessment_of_run(drawing, run_url=opening.url, wanted=spec.evaluate)
        except UserError as error:
            seen["refused"] = str(error)
        else:
            seen["judged"] = [found.samples.settings(), found.samples.count, repr(found.features), found.folder]
    return seen


def _driver(spec: JobSpec, opening: Opening, place: Place, sources: LocalSources, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Ray and the terminal are told, and how often a run that always fails is tried."""
    seen: dict[str, Any] = {"attempts": 0}

    def attempt(self: launch.Driver, *_: Any) -> Ending:
        seen["attempts"] += 1
        return Ending("failed", error=TrainError("planted"))

    with monkeypatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "")
        patch.setattr(ray, "is_initialized", lambda: False)
        patch.setattr(ray, "init", lambda **options: seen.update(init=options))
        patch.setattr(ray, "shutdown", lambda: None)
        patch.setattr(ray, "nodes", list)
        patch.setattr(ray, "cluster_resources", dict)
        patch.setattr(cluster, "capacity", lambda *_: Capacity(64, 8, 1))
        patch.setattr(launch, "keep_ray_data_here", lambda: None)
        patch.setattr(launch, "put_manifest", lambda manifest: manifest)
        gauge = SimpleNamespace(set=lambda *_, **__: None)
        patch.setattr(metrics, "Gauge", lambda name, **_: seen.setdefault("metrics", []).append(name) or gauge)
        patch.setattr(launch.Driver, "_attempt", attempt)
        patch.setattr(launch.Driver, "_pause", lambda self, *_, **__: None, raising=False)
        display = launch.Display
        patch.setattr(launch, "Display", lambda *given, **options: seen.update(display=[*given, options]) or display(*given, **options))
        with pytest.raises(TrainError, match="planted"):
            launch.run(opening)
        seen["start timeout"] = os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"]
        seen["workers"] = cluster.check_fits(spec, have=Capacity(64, 8, 1))
        seen["least room"] = _least_room(spec)
        patch.setattr(attempts, "TorchTrainer", lambda run, **options: seen.update({name: str(value) for name, value in options.items()}))
        assignment: Any = SimpleNamespace(place=place)
        attempts.make_trainer(spec, assignment, workers=seen["workers"], scratch="scratch")
        del seen["train_loop_config"]
        seen |= _watched(spec, opening, patch)
        seen["stream"] = _stream(spec, sources, patch)
    return {f"driver: {name}": value for name, value in seen.items()}


def _watched(spec: JobSpec, opening: Opening, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How long a hang is borne, and when the driver wishes a stop or makes room for a larger attempt."""
    seen: dict[str, Any] = {}
    nobody: Any = SimpleNamespace()
    alive = iter([True, True, True, False, False])
    thread: Any = SimpleNamespace(is_alive=lambda: next(alive), join=lambda timeout: None)
    patch.setattr(attempts, "_news", lambda board: News())
    patch.setattr(attempts, "find_hang", lambda heard, *, timeout_s, **_: seen.update(hang=timeout_s))
    show: Any = lambda *_: None  # noqa: E731
    attempts._follow(thread, nobody, spec, attempts.Watch(lambda age_s, ranks: Wish.NONE, lambda: None, show, show), workers=1)
    driver = launch.Driver(spec, opening, show=show, show_row=show)
    room: Any = SimpleNamespace(make=lambda: None, came=lambda: 1, rest=lambda seconds: None)
    seen["grows at the age of"] = [
        age for age in range(0, 1000, 50) if Wish.LEAVE in driver._wishes(room, age_s=age, seated=True, workers=0)
    ]
    began = driver._began
    over = []
    for hours in range(30):
        patch.setattr(launch, "time", SimpleNamespace(monotonic=lambda hours=hours: began + 3600 * hours))
        over.append(Wish.STOP in driver._wishes(room, age_s=0, seated=True, workers=0))
    seen["over after hours"] = over
    return seen


def _least_room(spec: JobSpec) -> list[bool]:
    """On which numbers of CPUs the run would fit."""

    def fits(cpus: float) -> bool:
        try:
            return bool(cluster.check_fits(spec, have=Capacity(cpus, 8, 1)))
        except UserError:
            return False

    return [fits(count / 4) for count in range(40)]


def _stream(spec: JobSpec, sources: LocalSources, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Ray Data is told to read with."""
    seen: dict[str, Any] = {}

    class Enough(Exception):
        pass

    def iter_batches(**options: Any) -> Any:
        seen.update(options)
        raise Enough

    def read_datasource(source: Any, **options: Any) -> Any:
        seen.update(options)
        reader = SimpleNamespace(iter_batches=iter_batches)
        return SimpleNamespace(context=SimpleNamespace(execution_options=SimpleNamespace()), streaming_split=lambda *_, **__: [reader])

    patch.setattr(stream.ray.data, "read_datasource", read_datasource)
    reference: Any = SimpleNamespace()  # nobody looks inside
    on_ray = RaySources.on(spec, reference, sources)
    with pytest.raises(Enough):
        next(stream.open_stream(reference, on_ray.share, stop_step=8, tasks=on_ray.cluster_tasks))
    return seen


def _second_start(spec: JobSpec, opening: Opening, other_data: str) -> str:
    """What a start says when the run was begun on other pictures."""
    data = spec.data
    other = manifests.build(
        other_data,
        labels=data.labels,
        image_column=data.image_column,
        label_column=data.label_column,
        seed=spec.run.seed,
        validation_fraction=data.validation_fraction,
    )
    manifests.write(other, f"{opening.url}/{MANIFEST_FILE}")
    try:
        return inspect_run(spec).describe()
    except UserError as error:
        return str(error).splitlines()[0]


def _pods(spec: JobSpec) -> list[Any]:
    """The manifests, of which only the section `kube` speaks: without the spec that travels in them, and what is derived of its text."""
    if spec.kube.image is None:
        return []
    run, data = (
        spec.run.model_copy(update={"output_dir": "gs://bucket/runs"}),
        spec.data.model_copy(update={"path": "gs://bucket/pictures"}),
    )
    spec_map, job = render.job(spec.model_copy(update={"run": run, "data": data}))
    return [spec_map["metadata"]["namespace"], job["metadata"]["namespace"], job["spec"]]


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: _value(value) for name, value in vars(module).items() if not name.startswith("_") and name != "training"}


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _digest({"": value})
    if isinstance(value, Callable):
        return getattr(value, "__name__", type(value).__name__)
    return value if isinstance(value, int | float | str | tuple) else str(value)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    said = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        said.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        said.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return said.hexdigest()[:16]


def _stable(path: Path) -> str:
    """A file's name without what changes from run to run."""
    return "tensorboard" if "tensorboard" in path.parts else str(path)
