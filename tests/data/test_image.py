import random
import resource
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pictures import file_of, noise
from PIL import Image, ImageFile, PngImagePlugin

from iddpm_ray.data.image import BadPicture, Decoding, decode
from iddpm_ray.data.listing import picture_extensions

SAME = Decoding(20, 24)  # the size of `noise`, so nothing is resized


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_16(pixel: bytes, *, colour: int, key: bytes = b"", size: tuple[int, int] = (4, 4)) -> bytes:
    """A plain 16-bit PNG written by hand, since Pillow writes only grey ones; `key` is its transparent colour."""
    return png(pixel * size[0], depth=16, colour=colour, key=key, size=size)


def png(row: bytes, *, depth: int, colour: int, key: bytes, size: tuple[int, int]) -> bytes:
    """A PNG of equal rows."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, 0))
    body = png_chunk(b"IDAT", zlib.compress((b"\0" + row) * size[1]))
    return b"\x89PNG\r\n\x1a\n" + header + (png_chunk(b"tRNS", key) if key else b"") + body + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "TGA", "PPM", "SGI", "PCX", "QOI", "GIF", "ICO", "WEBP", "JPEG2000"])
def test_lossless_formats_give_their_pixels(kind: str) -> None:
    pixels = noise(0)
    image = Image.fromarray(pixels)
    options = {"WEBP": {"lossless": True}, "ICO": {"sizes": [(24, 20)]}}.get(kind, {})
    got = decode(file_of(image, kind, **options), SAME)
    expected = np.asarray(image.quantize(256, method=Image.Quantize.MEDIANCUT).convert("RGB")) if kind == "GIF" else pixels
    atol = 60 if kind == "GIF" else 0  # a GIF has 256 colours
    np.testing.assert_allclose(got.transpose(1, 2, 0).astype(int), expected.astype(int), atol=atol)
    assert got.dtype == np.uint8
    assert got.shape == (3, 20, 24)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF"])
def test_lossy_formats_come_close(kind: str) -> None:
    smooth = np.asarray(Image.fromarray(noise(0, height=4, width=4)).resize((24, 20), Image.Resampling.BICUBIC))
    got = decode(file_of(Image.fromarray(smooth), kind, quality=95), SAME)
    assert np.abs(got.transpose(1, 2, 0).astype(int) - smooth).mean() < 6


def test_listing_knows_the_formats_that_decode() -> None:
    known = picture_extensions()
    assert {".jpg", ".jpeg", ".png", ".gif", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".ppm", ".jp2", ".ico", ".tga"} <= known
    assert not known & {".h5", ".mpg", ".pdf", ".parquet", ".json", ".txt", ""}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_pictures_are_turned_upright(orientation: int, kind: str) -> None:
    upright = np.zeros((20, 24, 3), dtype=np.uint8)
    upright[:10, :12], upright[:10, 12:], upright[10:, :12] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    turns = {1: (0, False), 2: (0, True), 3: (2, False), 4: (2, True), 5: (1, True), 6: (1, False), 7: (3, True), 8: (3, False)}
    quarter, mirrored = turns[orientation]
    # What the camera stored is the upright picture with the orientation undone: orientation 6 is turned 90 degrees clockwise for display.
    stored = np.rot90(np.fliplr(upright) if mirrored else upright, quarter)
    exif = Image.Exif()
    exif[0x0112] = orientation
    got = decode(file_of(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, quality=100), SAME).transpose(1, 2, 0)
    for y, x in ((3, 3), (3, 20), (16, 3), (16, 20)):
        assert np.abs(got[y, x].astype(int) - upright[y, x]).max() < 30, (orientation, y, x)


def test_broken_exif_leaves_the_picture_as_it_lies() -> None:
    image = Image.fromarray(noise(0))
    assert (decode(file_of(image, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\xff garbage"), SAME) == decode(file_of(image), SAME)).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "L", "RGB"])
def test_transparency_shows_the_background(mode: str) -> None:
    background = (10, 200, 90)
    decoding = Decoding(20, 24, background=background)
    if mode in ("RGBA", "LA"):
        picture = Image.new(mode, (24, 20), (250, 250, 250, 0) if mode == "RGBA" else (250, 0))
        data = file_of(picture)
    elif mode == "PA":
        data = file_of(Image.new("RGBA", (24, 20), (1, 2, 3, 0)).convert("PA"), "TIFF")
    else:
        fill = {"P": 3, "L": 7, "RGB": (1, 2, 3)}[mode]
        image = Image.new(mode, (24, 20), fill)
        if mode == "P":
            image.putpalette(list(range(30)))
        data = file_of(image, transparency=fill)
    got = decode(data, decoding)
    assert (got == np.array(background, dtype=np.uint8)[:, None, None]).all()


def test_half_transparent_colours_are_mixed_with_the_background() -> None:
    got = decode(file_of(Image.new("RGBA", (24, 20), (200, 100, 0, 128))), Decoding(20, 24, background=(0, 0, 255)))
    assert np.abs(got[:, 0, 0].astype(int) - [100, 50, 127]).max() <= 1


def test_alpha_is_composed_before_the_picture_shrinks() -> None:
    """Colours under full transparency never bleed into what is seen."""
    pixels = np.zeros((40, 40, 4), dtype=np.uint8)
    pixels[..., 0] = 255  # red, but invisible ...
    pixels[::2, :, :] = (0, 0, 0, 255)  # ... between lines of black
    got = decode(file_of(Image.fromarray(pixels)), Decoding(10, 10, background=(0, 0, 0)))
    assert got.max() == 0


def test_palettes_become_colours_before_the_picture_shrinks() -> None:
    image = Image.new("P", (40, 40))
    image.putpalette([0, 0, 0, 255, 255, 255] + [255, 0, 0] * 254)
    image.putdata([(x + y) % 2 for y in range(40) for x in range(40)])
    got = decode(file_of(image), Decoding(20, 20))
    assert np.abs(got.astype(int) - 127).max() <= 1  # a mean, not one of the two


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "JPEG2000"])
def test_16_bit_grey_is_scaled_not_cut_off(kind: str) -> None:
    ramp = (np.arange(20 * 24, dtype=np.uint16) * 136).reshape(20, 24)
    got = decode(file_of(Image.fromarray(ramp), kind), SAME)
    assert (got == (ramp >> 8)).all()
    assert got.max() == 254


def test_big_endian_16_bit_grey_is_scaled() -> None:
    ramp = (np.arange(20 * 24, dtype=np.uint16) * 136).reshape(20, 24)
    assert (decode(file_of(Image.fromarray(ramp.astype(">u2")), "TIFF"), SAME) == (ramp >> 8)).all()


def test_16_bit_colour_and_transparency() -> None:
    high = struct.pack(">HHH", 40000, 300, 65535)
    assert decode(png_16(high, colour=2), Decoding(4, 4))[:, 0, 0].tolist() == [40000 >> 8, 300 >> 8, 255]
    assert decode(png_16(high, colour=2, key=high), Decoding(4, 4, background=(9, 8, 7)))[:, 0, 0].tolist() == [9, 8, 7]
    dark = struct.pack(">HHH", 100, 50, 20)
    assert decode(png_16(dark, colour=2, key=dark), Decoding(4, 4, background=(9, 8, 7)))[:, 0, 0].tolist() == [9, 8, 7]
    grey = struct.pack(">H", 40000)
    assert decode(png_16(grey, colour=0, key=grey), Decoding(4, 4, background=(9, 8, 7)))[:, 0, 0].tolist() == [9, 8, 7]
    assert decode(png_16(grey, colour=0), Decoding(4, 4, channels=1))[:, 0, 0].tolist() == [40000 >> 8]
    half = struct.pack(">HHHH", 65535, 0, 0, 32768)
    assert np.abs(decode(png_16(half, colour=6), Decoding(4, 4))[:, 0, 0].astype(int) - [255, 127, 127]).max() <= 1


@pytest.mark.parametrize(("depth", "row"), [(1, b"\x40"), (2, b"\x1b"), (4, b"\x01\x23"), (8, b"\0\1\2\3")])
def test_one_value_of_shallow_grey_is_transparent(depth: int, row: bytes) -> None:
    """The row is 0, 1 and so on; 1 is transparent."""
    data = png(row, depth=depth, colour=0, key=struct.pack(">H", 1), size=(4, 4))
    shown = decode(data, Decoding(4, 4, background=(9, 8, 7)))[:, 0]
    assert shown[:, 1].tolist() == [9, 8, 7]
    assert shown[:, 0].tolist() == [0, 0, 0]
    assert shown[:, 2].tolist() == [{1: 0, 2: 170, 4: 34, 8: 2}[depth]] * 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.linspace(0, 1, 480, dtype=np.float32), np.rint(np.linspace(0, 1, 480) * 255)),
        (np.linspace(0, 255, 480, dtype=np.float32), np.floor(np.linspace(0, 255, 480))),
        (np.linspace(0, 65535, 480, dtype=np.float32), np.floor(np.linspace(0, 65535, 480) / 256)),
        (np.linspace(0, 255, 480).astype(np.int32), np.floor(np.linspace(0, 255, 480))),
        (np.linspace(0, 65535, 480).astype(np.int32), np.floor(np.linspace(0, 65535, 480) / 256)),
    ],
)
def test_32_bit_grey_is_read_by_its_range(values: np.ndarray, expected: np.ndarray) -> None:
    got = decode(file_of(Image.fromarray(values.reshape(20, 24)), "TIFF"), SAME)
    assert np.abs(got[0].reshape(-1).astype(int) - expected).max() <= 1
    assert got.min() == 0
    assert got.max() == 255


@pytest.mark.parametrize("value", [-5.0, 1e6, np.nan, np.inf])
def test_32_bit_grey_without_a_reading_is_refused(value: float) -> None:
    data = file_of(Image.fromarray(np.full((20, 24), value, dtype=np.float32)), "TIFF")
    with pytest.raises(BadPicture, match=r"scan\.tif has float32 values .* no reading as brightness"):
        decode(data, SAME, name="scan.tif")


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB", "1", "L", "LA", "P"])
def test_other_colour_spaces_become_rgb(mode: str) -> None:
    white_lab = Image.merge("LAB", [Image.new("L", (24, 20), value) for value in (255, 128, 128)])
    image = white_lab if mode == "LAB" else Image.new("RGB", (24, 20), (255, 255, 255)).convert(mode)
    kind = "PNG" if mode in ("LA", "P") else "TIFF"
    got = decode(file_of(image, kind), Decoding(20, 24, background=(0, 0, 0)))
    assert got.shape == (3, 20, 24)
    assert got.min() >= 250


def test_cmyk_jpeg_keeps_its_colours() -> None:
    got = decode(file_of(Image.new("RGB", (24, 20), (255, 0, 0)).convert("CMYK"), "JPEG", quality=100), SAME)[:, 10, 10]
    assert np.abs(got.astype(int) - [255, 0, 0]).max() < 12


def test_one_channel_keeps_grey_exactly_and_weighs_colour() -> None:
    grey = noise(0, channels=1)
    one = Decoding(20, 24, channels=1)
    assert (decode(file_of(Image.fromarray(grey)), one)[0] == grey).all()
    assert (decode(file_of(Image.merge("LA", (Image.fromarray(grey), Image.new("L", (24, 20), 255)))), one)[0] == grey).all()
    assert (decode(file_of(Image.fromarray(grey)), SAME) == grey).all()
    weighed = decode(file_of(Image.new("RGB", (24, 20), (255, 0, 0))), one)
    assert (weighed == 76).all()  # ITU-R 601: 0.299 * 255


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (24, 20), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    got = decode(file_of(frames[0], kind, save_all=True, append_images=frames[1:]), SAME)
    assert np.abs(got[:, 5, 5].astype(int) - [200, 0, 0]).max() < 12


@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 8), (8, 16), (5, 31), (64, 64), (1, 1)])
@pytest.mark.parametrize("size", [(20, 24), (97, 40), (33, 200), (8, 8), (1, 1)])
def test_any_picture_covers_any_target_undistorted(height: int, width: int, size: tuple[int, int]) -> None:
    """A horizontal ramp stays a ramp of the same slope, whose middle is the picture's middle."""
    high, wide = size
    ramp = np.tile(np.linspace(0, 255, wide), (high, 1)).round().astype(np.uint8)
    got = decode(file_of(Image.fromarray(ramp)), Decoding(height, width, channels=1))[0].astype(float)
    assert got.shape == (height, width)
    if wide > 1 and width > 1:
        scale = max(width / wide, height / high)
        middle = got.mean(axis=0)
        expected = 127.5 + (np.arange(width) - (width - 1) / 2) * 255 / (wide - 1) / scale
        inner = (expected > 20) & (expected < 235)
        # Halving and rounding to whole pixels may move the picture by a pixel or so of the target.
        assert np.abs(middle - expected)[inner].max(initial=0) < 3 + 1.6 * 255 / (wide - 1) / scale


def test_thin_lines_do_not_alias() -> None:
    lines = np.zeros((512, 512), dtype=np.uint8)
    lines[:, ::2] = 255
    got = decode(file_of(Image.fromarray(lines)), Decoding(32, 32, channels=1))
    assert np.abs(got.astype(int) - 127).max() <= 1


JPEG = file_of(Image.fromarray(noise(1, height=60, width=80)), "JPEG")
PNG = file_of(Image.fromarray(noise(1, height=60, width=80)), "PNG")
WEBP = file_of(Image.fromarray(noise(1, height=60, width=80)), "WEBP")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", r"x\.png is empty \(0 bytes\)"),
        (JPEG[:1500], r"x\.png is truncated after 1500 bytes"),
        (PNG[:1500], r"x\.png is truncated after 1500 bytes"),
        (WEBP[:1500], r"x\.png is truncated after 1500 bytes"),
        (JPEG[:20], r"x\.png begins as JPEG but is damaged or cut short after 20 bytes"),
        (PNG[:20], r"x\.png is truncated after 20 bytes"),
        (b"hello, I am a text file", r"x\.png is not a picture: no known format begins like its 23 bytes"),
        (b"\0" * 1000, r"x\.png is not a picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", r"x\.png is not a picture"),
        (png_16(b"\0\0", colour=0).replace(b"IDAT", b"IDOT"), r"x\.png begins as PNG but is damaged or cut short"),
    ],
    ids=["empty", "jpeg", "png", "webp", "jpeg-header", "png-header", "text", "zeros", "svg", "no-data"],
)
def test_a_bad_file_is_named_with_what_is_wrong_and_what_would_do(data: bytes, complaint: str) -> None:
    with pytest.raises(BadPicture, match=complaint) as caught:
        decode(data, SAME, name="x.png")
    assert "data.on_error=substitute" in str(caught.value)


def bomb(width: int, height: int) -> bytes:
    return png_16(b"\0\0", colour=0, size=(4, 4)).replace(
        png_chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, 0, 0, 0, 0)),
        png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 0, 0, 0, 0)),
    )


def test_a_picture_that_claims_too_much_is_refused_by_its_header() -> None:
    with pytest.raises(BadPicture, match=r"x\.png claims 60000x60000 pixels, more than data\.max_pixels = 178956970"):
        decode(bomb(60000, 60000), SAME, name="x.png")
    with pytest.raises(BadPicture, match=r"claims 24x20 pixels, more than data\.max_pixels = 479"):
        decode(file_of(Image.fromarray(noise(0))), Decoding(20, 24, max_pixels=479))
    assert decode(file_of(Image.fromarray(noise(0))), Decoding(20, 24, max_pixels=480)).shape == (3, 20, 24)


def ico(picture: bytes) -> bytes:
    """An icon that claims 16x16 pixels, whatever it holds."""
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(picture), 22) + picture


def icns(picture: bytes) -> bytes:
    """An icon of Apple's that claims 128x128 pixels, whatever it holds."""
    return b"icns" + struct.pack(">I", 16 + len(picture)) + b"ic07" + struct.pack(">I", 8 + len(picture)) + picture


def gif(width: int, height: int) -> bytes:
    """One frame to be wiped after it is shown, for which Pillow fills memory in `open`."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    wiped = b"\x21\xf9\x04\x08\0\0\0\0"
    return head + wiped + b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\0\x3b"


def iptc(picture: bytes) -> bytes:
    """A picture of 4x4 grey pixels by its fields, whatever it holds."""

    def field(record: int, tag: int, data: bytes) -> bytes:
        return bytes([0x1C, record, tag]) + struct.pack(">H", len(data)) + data

    shape = field(3, 60, b"\1\0") + field(3, 20, b"\0\4") + field(3, 30, b"\0\4") + field(3, 120, b"\0\5")
    return shape + field(8, 10, picture)


@pytest.mark.parametrize("wrap", [ico, icns, iptc])
def test_a_picture_within_a_file_is_refused_before_it_is_decoded(wrap: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    limit = Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load_prepare", lambda self: decoded.append(self))
    with pytest.raises(BadPicture, match=r"x claims \d+ pixels, more than data\.max_pixels = 1000000.*data\.on_error=substitute"):
        decode(wrap(bomb(30000, 30000)), Decoding(20, 24, max_pixels=1_000_000), name="x")
    assert not decoded
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.filterwarnings("ignore:Image was not the expected size")
def test_a_picture_within_an_icon_is_held_to_the_very_limit() -> None:
    inner = file_of(Image.fromarray(noise(0)))
    assert decode(ico(inner), Decoding(20, 24, max_pixels=480)).shape == (3, 20, 24)
    with pytest.raises(BadPicture, match=r"claims (24x20|480) pixels, more than data\.max_pixels = 479"):
        decode(ico(inner), Decoding(20, 24, max_pixels=479))


def test_no_memory_is_filled_for_a_gif_that_claims_too_much() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadPicture, match=r"claims (30000x30000|900000000) pixels, more than data\.max_pixels = 1000000"):
        decode(gif(30000, 30000), Decoding(20, 24, max_pixels=1_000_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "KiB"


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("data", [EPS, b"\xc5\xd0\xd3\xc6" + bytes(26) + EPS, iptc(EPS)], ids=["eps", "dos-eps", "eps-in-iptc"])
def test_postscript_starts_no_program(data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BadPicture, match=r"cat\.png is (EPS: PostScript is a program, and is not run|damaged)") as caught:
        decode(data, SAME, name="cat.png")
    assert "\n" not in str(caught.value)
    assert not started.exists()


def test_a_larger_limit_is_obeyed_beyond_that_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode(file_of(Image.fromarray(noise(0))), SAME).shape == (3, 20, 24)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_a_sliver_is_refused_rather_than_enlarged_without_bound() -> None:
    with pytest.raises(BadPicture, match="is too narrow: its 1x3000 pixels"):
        decode(file_of(Image.new("L", (1, 3000))), Decoding(64, 64, max_pixels=10_000_000))


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about tags
def test_damaged_bytes_give_pixels_or_one_clear_error() -> None:
    """Whatever is flipped or cut, nothing but BadPicture comes out."""
    generator = random.Random(0)
    whole = [JPEG, PNG, WEBP] + [
        file_of(Image.fromarray(noise(2)), kind) for kind in ("GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "TGA", "QOI")
    ]
    complaints: list[str] = []
    for i in range(300):
        data = bytearray(whole[i % len(whole)])
        for _ in range(generator.randrange(1, 20)):
            data[generator.randrange(min(len(data), 400))] = generator.randrange(256)
        if i % 2:
            del data[generator.randrange(len(data)) :]
        try:
            assert decode(bytes(data), SAME, name="x").shape == (3, 20, 24)
        except BadPicture as error:
            complaints.append(str(error))
    assert 100 < len(complaints) < 300
    assert all(complaint.startswith("x ") for complaint in complaints)


def test_pillow_is_left_as_it_was() -> None:
    before = Image.MAX_IMAGE_PIXELS
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: decode(file_of(Image.fromarray(noise(i))), SAME), range(64)))
    assert before == Image.MAX_IMAGE_PIXELS
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_the_same_bytes_give_the_same_pixels_from_any_thread() -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: decode(JPEG, Decoding(8, 8)), range(32)))
    assert all((result == results[0]).all() for result in results[1:])
