"""Bytes of any picture file to uint8 pixels of one size: upright, opaque, reduced, cropped; or one clear error."""

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import EpsImagePlugin, ExifTags, GifImagePlugin, IcoImagePlugin, Image, ImageOps, UnidentifiedImageError

from iddpm_ray.data.modes import flatten, scale_key
from iddpm_ray.errors import DataError

DEFAULT_MAX_PIXELS = 178956970
FIX = "repair or remove it, or set data.on_error=substitute"

_LOST = re.compile(r"truncat|EOF|not enough|only got|incomplete|expected to read", re.IGNORECASE)
_SIGNATURES = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "JPEG2000", "AVIF")
_ALLOCATE_IN_OPEN = tuple(str(kind.format) for kind in (IcoImagePlugin.IcoImageFile, GifImagePlugin.GifImageFile))
_HOLD_ANOTHER = ("ICNS", "BLP", "IPTC")  # a picture of its own size lies within, first looked at when it is loaded
_limiting = threading.Lock()

EpsImagePlugin.gs_binary = False  # PostScript is a program: an IPTC file that holds one must not start Ghostscript either


class BadPicture(DataError):
    """A picture that cannot be shown, through no fault of the store it lies in."""


@dataclass(frozen=True)
class Decoding:
    """What pixels are wanted of a picture.

    Attributes:
        height, width: size in pixels.
        channels: 3 for RGB, 1 for grey.
        background: red, green, blue that show where a picture is transparent, 0..255.
        max_pixels: a picture whose header claims more is refused before it is decoded.
    """

    height: int
    width: int
    channels: int = 3
    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = DEFAULT_MAX_PIXELS

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return (self.channels, self.height, self.width)

    @property
    def num_bytes(self) -> int:
        """Bytes of one decoded picture."""
        return self.channels * self.height * self.width


def decode(data: bytes, decoding: Decoding, *, name: str = "the picture") -> NDArray[np.uint8]:
    """Pixels [C, H, W] of a picture file: its first frame, turned upright by EXIF, composed on the background, made to fit.

    Args:
        data: the whole file, in any format that Pillow reads but EPS, which only an interpreter of programs draws.
        name: how errors call the picture, such as its path and row.

    Raises:
        BadPicture: empty, truncated, damaged, not a picture, PostScript, or larger than `decoding.max_pixels`.
    """
    if not data:
        raise BadPicture(f"{name} is empty (0 bytes)", fix=FIX)
    image = _loaded(data, max_pixels=decoding.max_pixels, name=name)
    try:
        flat = flatten(image, channels=decoding.channels, background=decoding.background)
    except (ValueError, OSError) as error:
        raise BadPicture(f"{name} {error}", fix=f"convert it to 8 or 16 bits a channel, {FIX}") from error
    needed = _covering(flat.size, width=decoding.width, height=decoding.height)
    if needed[0] * needed[1] > max(decoding.max_pixels, decoding.width * decoding.height):
        wanted = f"{decoding.width}x{decoding.height} only if enlarged to {needed[0]}x{needed[1]}"
        what = f"{name} is too narrow: its {flat.width}x{flat.height} pixels cover {wanted}"
        raise BadPicture(what, fix=f"raise data.max_pixels, crop it, {FIX}")
    pixels = np.asarray(fit(flat, width=decoding.width, height=decoding.height))
    return np.ascontiguousarray(pixels.reshape(decoding.height, decoding.width, decoding.channels).transpose(2, 0, 1))


def fit(image: Image.Image, *, width: int, height: int) -> Image.Image:
    """Shrinks or enlarges to cover width x height, and cuts the middle out.

    Halved with a box filter while at least twice too large, then resized bicubically: no aliasing, and fast. For square targets this is the
    reduction of the original program, pixel for pixel.
    """
    image = _halved(image, width=width, height=height)
    image = image.resize(_cover(image.size, width=width, height=height), resample=Image.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _halved(image: Image.Image, *, width: int, height: int) -> Image.Image:
    while image.width >= 2 * width and image.height >= 2 * height:
        image = image.resize((image.width // 2, image.height // 2), resample=Image.Resampling.BOX)
    return image


def _cover(size: tuple[int, int], *, width: int, height: int) -> tuple[int, int]:
    """The smallest size of the same shape that covers width x height."""
    scale = max(width / size[0], height / size[1])
    return max(width, round(size[0] * scale)), max(height, round(size[1] * scale))


def _covering(size: tuple[int, int], *, width: int, height: int) -> tuple[int, int]:
    """What `fit` enlarges a picture of this size to, found without touching pixels."""
    wide, high = size
    while wide >= 2 * width and high >= 2 * height:
        wide, high = wide // 2, high // 2
    return _cover((wide, high), width=width, height=height)


def _loaded(data: bytes, *, max_pixels: int, name: str) -> Image.Image:
    """The first frame, decoded and upright, in the file's own mode."""
    if _accepts("EPS", data):
        raise BadPicture(f"{name} is EPS: PostScript is a program, and is not run", fix=f"convert it to PNG, {FIX}")
    try:
        image = _opened(data, max_pixels=max_pixels)
        _check_size(image, max_pixels=max_pixels, name=name)
        scale_key(image)
        _load(image, max_pixels=max_pixels)
        _check_size(image, max_pixels=max_pixels, name=name)
    except (BadPicture, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # the warning where a filter makes it an error
        found = re.search(r"\d+", str(error))
        raise _too_large(found.group() if found else "more", max_pixels=max_pixels, name=name) from error
    except Exception as error:  # on damaged files decoders raise whatever they trip over: struct.error, SyntaxError, IndexError ...
        raise BadPicture(f"{name} {_complaint(data, error)}", fix=FIX) from error
    return _upright(image)


def _check_size(image: Image.Image, *, max_pixels: int, name: str) -> None:
    if image.width * image.height > max_pixels:
        raise _too_large(f"{image.width}x{image.height}", max_pixels=max_pixels, name=name)


def _too_large(claimed: str, *, max_pixels: int, name: str) -> BadPicture:
    what = f"{name} claims {claimed} pixels, more than data.max_pixels = {max_pixels}"
    return BadPicture(what, fix=f"raise data.max_pixels if the picture is genuine, {FIX}")


def _opened(data: bytes, *, max_pixels: int) -> Image.Image:
    """Reads the header; only of the formats that allocate meanwhile does Pillow judge the size, whose refusal knows no width and height."""
    allocates = any(_accepts(kind, data) for kind in _ALLOCATE_IN_OPEN)
    with _pillow_limit(max_pixels if allocates else None):
        return Image.open(io.BytesIO(data))


def _load(image: Image.Image, *, max_pixels: int) -> None:
    """Decodes: one at a time where Pillow has to be told the limit, else beside other threads."""
    if image.format not in _HOLD_ANOTHER:
        image.load()
        return
    with _pillow_limit(max_pixels):
        image.load()


@contextmanager
def _pillow_limit(pixels: int | None) -> Iterator[None]:
    """Sets Pillow's own limit, one a process, meanwhile: it warns of pictures beyond it, and raises at twice as many pixels."""
    with _limiting:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _upright(image: Image.Image) -> Image.Image:
    """Turned as EXIF says; an EXIF block that cannot be read says nothing about orientation, the pixels are whole."""
    kind = image.format
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image  # `exif_transpose` would copy it
        turned = ImageOps.exif_transpose(image)
    except Exception:  # parsers of damaged EXIF raise whatever they trip over
        return image
    turned.format = kind
    return turned


def _complaint(data: bytes, error: Exception) -> str:
    """What is wrong with a file that Pillow would not decode, as the end of a sentence."""
    if isinstance(error, UnidentifiedImageError):
        kind = next((name for name in _SIGNATURES if _accepts(name, data)), None)
        if kind is None:
            return f"is not a picture: no known format begins like its {len(data)} bytes"
        return f"begins as {kind} but is damaged or cut short after {len(data)} bytes"
    riff_cut = data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 > len(data)
    if riff_cut or _LOST.search(str(error)) or isinstance(error, EOFError):
        return f"is truncated after {len(data)} bytes"
    return f"is damaged or cut short: {type(error).__name__}: {error}"


def _accepts(kind: str, data: bytes) -> bool:
    """Whether the first bytes are the signature of a format."""
    accept = Image.OPEN[kind][1] if kind in Image.OPEN else None
    return accept is not None and accept(data[:16]) is True
