"""Pictures of a run by number: image i is a function of (seed, i) alone, whoever draws it; also through a cascade of two networks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iddpm_ray import storage
from iddpm_ray.diffusion.seeded import Method
from iddpm_ray.errors import DataError, SpecError
from iddpm_ray.evaluate.chunks import Chunks, Work, claim, work_here
from iddpm_ray.evaluate.classes import Labels, in_turn, of_array
from iddpm_ray.evaluate.drawing import Arithmetic, Drawing, make_drawing
from iddpm_ray.evaluate.npz import PictureFile, encode
from iddpm_ray.evaluate.trained import Source, find_source

EXTENSION = "npz"
LOW_RES = "low_res"


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that decides which pictures come out.

    Attributes:
        drawing: the network whose pictures are wanted.
        seed: of everything random.
        count: pictures.
        batch: pictures drawn together; a chunk always has so many, those beyond `count` being thrown away.
        labels: None for networks without classes.
        base: what a network that enlarges is given: another network's pictures of the same numbers, or the URL of an npz.
        base_fingerprint: of that npz.
        threads: of torch in each worker.
    """

    drawing: Drawing
    seed: int
    count: int
    batch: int
    labels: Labels | None = None
    base: Drawing | str | None = None
    base_fingerprint: dict[str, int] | None = None
    threads: int = 1

    def settings(self) -> dict[str, Any]:
        """What the job's folder must remember, so that going on gives the same bits."""
        settings: dict[str, Any] = {"job": "sample", **self.drawing.settings(), "seed": self.seed, "threads": self.threads}
        if self.labels is not None:
            settings["classes"] = self.labels.settings()
        if isinstance(self.base, Drawing):
            settings["base"] = self.base.settings()
        elif self.base is not None:
            settings["base"] = {"file": storage.shown(self.base), **(self.base_fingerprint or {})}
        return settings

    @property
    def labelled_by(self) -> Source | None:
        """Whose label map the classes are of; None without classes."""
        networks = [self.drawing, *([self.base] if isinstance(self.base, Drawing) else [])]
        return next((network.source for network in networks if network.source.num_classes is not None), None)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C) of all pictures."""
        channels, height, width = self.drawing.spec.picture_shape()
        return (self.count, height, width, channels)

    def claim(self, url: str) -> Chunks:
        """The job's folder.

        Raises:
            SpecError: it holds another job.
        """
        return claim(url, self.settings(), count=self.count, size=self.batch, extension=EXTENSION)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws the chunks of a job: `arr_0` uint8 [n, H, W, C], `arr_1` its classes, `low_res` what a cascade enlarged."""

    job: Job
    chunks: Chunks

    def open(self) -> Work:
        """Loads the networks."""
        draw = Painter(self.job)

        def work(chunk: int) -> bytes:
            first, items = chunk * self.job.batch, self.chunks.items(chunk)
            drawn = draw(torch.arange(first, first + self.job.batch))
            arrays: dict[str, NDArray] = {"arr_0": _rows(drawn.pictures[: len(items)])}
            if drawn.labels is not None:
                arrays["arr_1"] = drawn.labels[: len(items)].numpy()
            if drawn.low_res is not None:
                arrays[LOW_RES] = _rows(drawn.low_res[: len(items)])
            return encode(arrays)

        return work


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pictures [N, C, H, W] uint8, their classes [N] int64, and the small pictures [N, C, h, w] that they were made of."""

    pictures: Tensor
    labels: Tensor | None
    low_res: Tensor | None


class Painter:
    """A job's networks, opened: from numbers of pictures to pictures, through the cascade where there is one."""

    def __init__(self, job: Job) -> None:
        """Raises:
        UserError: weights or small pictures cannot be read.
        """
        self._job = job
        self._main = job.drawing.open()
        self._base = job.base.open() if isinstance(job.base, Drawing) else None
        self._file = PictureFile(job.base) if isinstance(job.base, str) else None

    def __call__(self, indices: Tensor) -> Drawn:
        """The pictures of int64 [N] consecutive numbers."""
        labels = None if self._job.labels is None else self._job.labels.at(indices)
        low_res = None
        if self._base is not None:
            low_res = self._base.draw(indices, seed=self._job.seed, labels=labels)
        elif self._file is not None:
            low_res = self._from_file(indices)
        return Drawn(self._main.draw(indices, seed=self._job.seed, labels=labels, low_res=low_res), labels, low_res)

    def _from_file(self, indices: Tensor) -> Tensor:
        """Rows of the file; beyond its last one that one again, for pictures that are thrown away."""
        assert self._file is not None
        begin, end = int(indices[0]), int(indices[-1]) + 1
        rows = torch.from_numpy(self._file.rows(min(begin, self._file.shape[0] - 1), min(end, self._file.shape[0])).copy())
        return torch.cat([rows, rows[-1:].expand(end - begin - len(rows), -1, -1, -1)])


def make_job(
    drawing: Drawing, *, seed: int, count: int | None, batch: int, labels: Labels | None, base: Drawing | str | None, threads: int
) -> Job:
    """A job whose parts fit together.

    Args:
        count: None for as many as base file or label file have, else 100.
        labels: None for those of the base file, or where the pictures are drawn with classes those of section `sample`.
        base: a network, or the URL of an npz.

    Raises:
        UserError: a network that enlarges without small pictures, or the other way round; sizes, classes or numbers that do not fit, or
            small pictures of which nobody says what class they show.
    """
    if drawing.enlarges and base is None:
        raise SpecError(
            "the network enlarges pictures, and there are none", fix="give --base, an npz of small pictures or a run that draws them"
        )
    if base is not None and not drawing.enlarges:
        raise SpecError("--base", value=_name(base), fix="is for networks that enlarge (model.kind: superres), which this one does not")
    file = PictureFile(base) if isinstance(base, str) else None
    if drawing.enlarges:
        _check_base(drawing, base, file)
    num_classes = _num_classes(drawing, base)
    if labels is not None and num_classes is None:
        raise SpecError("--classes", fix="the network was trained without classes")
    if labels is None and num_classes is not None:
        if file is not None and file.labels is not None:
            labels = of_array(file.labels, num_classes=num_classes)
        elif file is not None or (isinstance(base, Drawing) and base.source.num_classes is None):
            raise SpecError("--classes", fix="the base pictures say no class: name the class of each, or balanced for every class in turn")
        else:
            labels = in_turn(drawing.spec.sample.classes, num_classes=num_classes)
    enough = {"the base file": file.shape[0] if file else None, "the file of classes": labels.count if labels else None}
    known = [number for number in enough.values() if number is not None]
    wanted = count or min(known, default=100)
    for what, number in enough.items():
        if number is not None and number < wanted:
            raise DataError(f"{what} has {number} pictures", value=f"{wanted} wanted", fix=f"ask for --count {number} or fewer")
    fingerprint = file.fingerprint if file else None
    if file is not None:
        file.check()
        file.close()
    return Job(drawing, seed, wanted, batch, labels=labels, base=base, base_fingerprint=fingerprint, threads=threads)


def sample_run(
    run_url: str,
    *,
    count: int,
    labels: Tensor | None = None,
    ema: float | None = None,
    method: Method = "ddpm",
    respacing: str = "",
    eta: float = 0.0,
    guidance: float = 1.0,
    seed: int = 0,
    batch: int = 64,
) -> Tensor:
    """Draws pictures 0 .. count - 1 of a run's newest checkpoint in this process, as the command draws them.

    Args:
        labels: [count] int64 class of each picture, for a class-conditional network; None: every class in turn.
        ema, method, respacing, eta, guidance: as in the spec's section `sample`, whose own values count for nothing here.
        batch: pictures drawn together.

    Returns:
        [count, C, H, W] uint8.

    Raises:
        UserError: what the run cannot draw.
    """
    own = {"guidance_interval": None, "low_res_noise": 0, "classes": None}
    way = {"ema": ema, "method": method, "respacing": respacing, "eta": eta, "guidance": guidance}
    drawing = make_drawing(find_source(run_url), arithmetic=Arithmetic(), **own, **way)
    num_classes = drawing.source.num_classes
    given = None if labels is None or num_classes is None else of_array(labels.numpy(), num_classes=num_classes)
    job = make_job(drawing, seed=seed, count=count, batch=batch, labels=given, base=None, threads=torch.get_num_threads())
    draw = Painter(job)
    pieces = [draw(torch.arange(begin, begin + batch)).pictures for begin in range(0, count, batch)]
    return torch.cat(pieces)[:count]


def _check_base(drawing: Drawing, base: Drawing | str | None, file: PictureFile | None) -> None:
    low = drawing.spec.low_res_height_width()
    assert low is not None
    wanted = (drawing.spec.data.channels, *low)
    if isinstance(base, Drawing):
        found = base.spec.picture_shape()
        if base.enlarges:
            raise SpecError(
                "--base", value=base.source.name, fix="is a network that enlarges itself: draw its pictures first, and give their npz"
            )
    else:
        assert file is not None
        _, height, width, channels = file.shape
        found = (channels, height, width)
    if found != wanted:
        shown = {shape: f"{shape[1]} x {shape[2]} of {shape[0]} channels" for shape in (found, wanted)}
        raise DataError(f"the base pictures are {shown[found]}", fix=f"the network enlarges pictures of {shown[wanted]}")


def _num_classes(drawing: Drawing, base: Drawing | str | None) -> int | None:
    """Of whichever network has classes; two that have must have the same."""
    own = drawing.source.num_classes
    below = base.source.num_classes if isinstance(base, Drawing) else None
    if own is None or below is None:
        return below if own is None else own
    assert isinstance(base, Drawing)
    if own != below or (drawing.source.classes and base.source.classes and drawing.source.classes != base.source.classes):
        fix = "a cascade keeps each picture's class: train both on the same classes"
        raise SpecError(f"the network knows {own} classes, its base {below}, and they are not the same", fix=fix)
    return own


def _name(base: Drawing | str) -> str:
    return base.source.name if isinstance(base, Drawing) else base


def _rows(pictures: Tensor) -> NDArray[np.uint8]:
    """[N, C, H, W] as [N, H, W, C]."""
    return np.ascontiguousarray(pictures.permute(0, 2, 3, 1).numpy())


def generate_here(job: Job, url: str) -> Chunks:
    """Does a whole job in this process, without Ray."""
    chunks = job.claim(url)
    work_here(chunks, Sampler(job, chunks))
    return chunks
