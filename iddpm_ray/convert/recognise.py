"""Which network a state dict belongs to, from its names and shapes alone, in the names that OpenAI published."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from iddpm_ray.errors import CheckpointError, UserError
from iddpm_ray.models.superres import SuperResUNet
from iddpm_ray.models.unet import UNet

Shapes = Mapping[str, tuple[int, ...]]
_FIX = "name weights of a U-Net of improved-diffusion, guided-diffusion or this package"


@dataclass(frozen=True)
class Recognised:
    """What names and shapes tell; everything else must be said by whoever has the file.

    Attributes:
        kind: `unet` or `superres`.
        channels: colour channels of a picture, 1 or 3.
        learned: whether there are channels for a variance.
        num_channels, channel_mult, num_res_blocks, conv_resample, resblock_updown, scale_shift_norm: as in the spec.
        attention_factors: downsampling factors of the levels that have attention.
        label_rows: rows of the label embedding; None without one.
    """

    kind: str
    channels: int
    learned: bool
    num_channels: int
    channel_mult: tuple[float, ...]
    num_res_blocks: int
    attention_factors: tuple[int, ...]
    conv_resample: bool
    resblock_updown: bool
    scale_shift_norm: bool
    label_rows: int | None

    def resolutions(self, side: int) -> list[int]:
        """Feature-map sizes that have attention, for pictures of that longer side."""
        return [side // factor for factor in self.attention_factors]

    def describe(self) -> str:
        """The same as lines for a person."""
        widths = [int(self.num_channels * times) for times in self.channel_mult]
        resampling = "residual blocks" if self.resblock_updown else "convolutions" if self.conv_resample else "means and repetition"
        lines = {
            "network": f"{self.kind}, pictures of {self.channels} {'channel' if self.channels == 1 else 'channels'}, "
            f"{'with' if self.learned else 'without'} channels for a variance",
            "levels": f"{len(widths)}, {', '.join(map(str, widths))} channels wide, {self.num_res_blocks} residual blocks each",
            "attention": "in the middle" + "".join(f", at 1/{factor} of the size" for factor in self.attention_factors),
            "resampling": f"by {resampling}",
            "condition": "scale and shift" if self.scale_shift_norm else "added",
            "labels": "none" if self.label_rows is None else f"{self.label_rows} rows",
        }
        return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def recognise(shapes: Shapes, *, name: str) -> Recognised:
    """The network of these parameters.

    Args:
        shapes: of every tensor, by name.
        name: of the file, for errors.

    Raises:
        CheckpointError: they are no such network's; names what is missing, left over or of another shape.
    """
    try:
        found = _recognise(shapes)
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        wrapped = next((key for key in shapes if key.startswith(("module.", "_orig_mod."))), None)
        if wrapped is not None:
            raise CheckpointError(
                f"{name}: {wrapped} was saved from inside a wrapper", fix="save the wrapped module's own state_dict"
            ) from None
        what = f"there is no {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{name} holds no U-Net that is known here: {what}", fix=_FIX) from None
    _check(found, shapes, name=name)
    return found


def build_bare(found: Recognised) -> UNet:
    """The network with a single head everywhere, for its names and shapes; under `torch.device("meta")` it costs nothing."""
    return (UNet if found.kind == "unet" else SuperResUNet)(
        image_channels=found.channels,
        model_channels=found.num_channels,
        out_channels=found.channels * (2 if found.learned else 1),
        num_res_blocks=found.num_res_blocks,
        attention_factors=found.attention_factors,
        channel_mult=found.channel_mult,
        conv_resample=found.conv_resample,
        resblock_updown=found.resblock_updown,
        num_classes=found.label_rows,
        scale_shift_norm=found.scale_shift_norm,
    )


def _recognise(shapes: Shapes) -> Recognised:
    base = shapes["time_embed.0.weight"][1]
    num_blocks = 1 + max(int(match[1]) for key in shapes if (match := re.match(r"input_blocks\.(\d+)\.", key)))
    down = [block for block in range(1, num_blocks) if f"input_blocks.{block}.0.in_layers.0.weight" not in shapes]
    # A residual block behind a residual block doubles the size, first after the last level's blocks.
    up = [block for block in range(num_blocks) if any(f"output_blocks.{block}.{at}.in_layers.0.weight" in shapes for at in (1, 2))]
    num_res_blocks = up[0] if up else (down[0] if down else num_blocks) - 1
    levels, left = divmod(num_blocks, num_res_blocks + 1)
    if left or num_res_blocks < 1:
        raise ValueError(f"{num_blocks} blocks on the way down are no whole number of levels of {num_res_blocks} residual blocks")
    first = [1 + level * (num_res_blocks + 1) for level in range(levels)]
    widths = [shapes[f"input_blocks.{block}.0.in_layers.2.weight"][0] for block in first]
    kind, channels, learned = _pictures(shapes["input_blocks.0.0.weight"][1], shapes["out.2.weight"][0])
    label = shapes.get("label_emb.weight")
    return Recognised(
        kind=kind,
        channels=channels,
        learned=learned,
        num_channels=base,
        channel_mult=tuple(width // base if width % base == 0 else width / base for width in widths),
        num_res_blocks=num_res_blocks,
        attention_factors=tuple(2**level for level, block in enumerate(first) if f"input_blocks.{block}.1.qkv.weight" in shapes),
        conv_resample=not down or f"input_blocks.{down[0]}.0.op.weight" in shapes,
        resblock_updown=bool(up),
        scale_shift_norm=shapes["middle_block.0.emb_layers.1.weight"][0] == 2 * widths[-1],
        label_rows=None if label is None else label[0],
    )


def _pictures(seen: int, said: int) -> tuple[str, int, bool]:
    """Kind, colour channels and whether a variance is learned, from the channels that go in and come out."""
    for channels in (1, 3):
        if seen in (channels, 2 * channels) and said in (channels, 2 * channels):
            return ("unet" if seen == channels else "superres"), channels, said == 2 * channels
    raise ValueError(f"{seen} channels go in and {said} come out, which no pictures of 1 or 3 channels have")


def _check(found: Recognised, shapes: Shapes, *, name: str) -> None:
    try:
        with torch.device("meta"):
            wanted = {key: tuple(tensor.shape) for key, tensor in build_bare(found).state_dict().items()}
    except UserError as error:
        raise CheckpointError(f"{name} holds a network that cannot be built here: {error}", fix=_FIX) from None
    missing, extra = sorted(wanted.keys() - shapes.keys()), sorted(shapes.keys() - wanted.keys())
    other = [
        f"{key} is {list(shapes[key])} and should be {list(shape)}" for key, shape in wanted.items() if shapes.get(key, shape) != shape
    ]
    parts = [
        *([f"it lacks {some(missing)}"] if missing else []),
        *([f"it also holds {some(extra)}"] if extra else []),
        *([some(other)] if other else []),
    ]
    if parts:
        raise CheckpointError(f"{name} is no whole network: {'; '.join(parts)}", fix=_FIX)


def some(texts: list[str]) -> str:
    """The first four, and how many more there are."""
    return ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
