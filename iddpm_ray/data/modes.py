"""Any mode that Pillow knows made into 8-bit RGB or grey: alpha composed on a background, deep pictures scaled instead of saturated."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngImageFile

_DEEP = ("I", "F")


def scale_key(image: Image.Image) -> None:
    """Puts the transparent value of a PNG that is not loaded yet on the scale that Pillow will give its pixels, and not the value."""
    key = image.info.get("transparency")
    match image.tile[0].args if isinstance(image, PngImageFile) and image.tile else None, key:
        case "L;2", int():
            image.info["transparency"] = key * 85
        case "L;4", int():
            image.info["transparency"] = key * 17
        case "RGB;16B", tuple():  # read by its high bytes
            image.info["transparency"] = tuple(value >> 8 for value in key)


def flatten(image: Image.Image, *, channels: int, background: Sequence[int]) -> Image.Image:
    """An opaque 8-bit picture of mode RGB (3 channels) or L (1 channel), of the same size.

    Args:
        image: loaded, of any mode.
        background: red, green, blue that show where the picture is transparent.

    Raises:
        ValueError: if the numbers of a 32-bit picture have no reading as brightness.
    """
    if image.mode.startswith("I;16") or image.mode in _DEEP:
        image = _shallow(image)
    if image.mode == "LAB":
        image = _from_lab(image)
    elif image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        image = _compose(image, background)
    target = "RGB" if channels == 3 else "L"
    if image.mode == target:
        return image
    if target == "L" and image.mode not in ("1", "RGB"):
        image = image if image.mode == "L" else image.convert("RGB")
    return image.convert(target)


def _compose(image: Image.Image, background: Sequence[int]) -> Image.Image:
    """The picture over a plain background, by its alpha, its transparent palette entries or its transparent colour."""
    plain = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(plain, image.convert("RGBA")).convert("RGB")


def _shallow(image: Image.Image) -> Image.Image:
    """A grey picture of 16 or 32 bits as L, or as LA if one of its values means transparent.

    16-bit values keep their high byte, as Pillow does for 16-bit colour. TIFF may say that fewer bits are in use. 32-bit integers
    and floats do not say where white is: floats up to 1 are fractions, numbers up to 255 are bytes, up to 65535 16-bit values.
    """
    values = np.asarray(image)
    key = image.info.get("transparency")
    if image.mode in _DEEP:
        values = _as_16_bits(values, wide=image.format == "PPM" and image.mode == "I")
        bits = 16
    else:
        bits = min(16, max(8, getattr(image, "tag_v2", {}).get(258, (16,))[0]))
    grey = Image.fromarray((values >> (bits - 8)).clip(0, 255).astype(np.uint8))
    if isinstance(key, int):
        grey = Image.merge("LA", (grey, Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8))))
    return grey


def _as_16_bits(values: np.ndarray, *, wide: bool) -> np.ndarray:
    """Brightness of a 32-bit picture as integers 0..65535; `wide` pictures are known to use that whole range."""
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 65535):  # also refuses NaN
        raise ValueError(f"has {values.dtype} values from {low:g} to {high:g}, which have no reading as brightness")
    if np.issubdtype(values.dtype, np.floating) and high <= 1:
        values = np.rint(values * 255.0)
        high = 255.0
    if high <= 255 and not wide:
        values = values * 256
    return values.astype(np.int64)


def _from_lab(image: Image.Image) -> Image.Image:
    """CIE L*a*b* (in TIFF) to sRGB, which Pillow converts only through a colour profile."""
    transform = ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB")
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None
    return converted
