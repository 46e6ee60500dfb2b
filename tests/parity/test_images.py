"""Recorded pictures: reduction to pixels, the original's listing, labels and shares, bytes, and super-resolution's two resizings."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden import Golden, GoldenFile

from iddpm_ray.data.image import Decoding, decode
from iddpm_ray.data.original import original_labels, original_listing, original_pixels, original_share
from iddpm_ray.diffusion.sample import to_bytes_truncated
from iddpm_ray.models.superres import downsample_condition, upsample_condition
from iddpm_ray.train.inputs import to_float

# Modes in which converting before or after a resize is the same, so the product's own reading agrees with the original's.
PLAIN_MODES = ("RGB", "L")


def _arrays(golden: Golden, pattern: str) -> tuple[GoldenFile, list[re.Match[str]]]:
    """The matches of `pattern` among the array names; an absent file has none."""
    if "images.npz" not in golden.files:
        return GoldenFile("images.npz", {}), []
    file = golden.open("images.npz")
    return file, [match for name in file.names() if (match := re.fullmatch(pattern, name))]


def _records(golden: Golden) -> dict[str, Any]:
    present = (golden.directory / "images.json").exists()
    records = golden.json("images.json") if present else {}
    assert isinstance(records, dict)
    return records


def test_reduction_equals_the_original_in_the_original_order(golden: Golden) -> None:
    file, matches = _arrays(golden, r"(.+)\.res\d+(?:x\d+)?\.(u8|float)")
    sources = {record["name"]: golden.file(record["file"]) for record in _records(golden).get("images", [])}
    for match in matches:
        channels, height, width = file.arrays[match[0]].shape
        pixels = original_pixels(sources[match[1]], height=height, width=width, channels=channels)
        if match[2] == "u8":
            file.check(match[0], pixels.astype(np.int64))
        else:
            file.check(match[0], to_float(torch.from_numpy(pixels)))


def test_reduction_of_plain_modes_equals_the_original(golden: Golden) -> None:
    file, matches = _arrays(golden, r"(.+)\.res\d+(?:x\d+)?\.u8")
    records = {record["name"]: record for record in _records(golden).get("images", [])}
    for match in matches:
        record = records[match[1]]
        channels, height, width = file.arrays[match[0]].shape
        if record["mode"] in PLAIN_MODES and channels in (1, 3):
            pixels = decode(golden.file(record["file"]).read_bytes(), Decoding(height, width, channels))
            file.check(match[0], pixels.astype(np.int64))


def test_listing_labels_and_shares_equal_the_original(golden: Golden, tmp_path: Path) -> None:
    records = _records(golden)
    for name in records.get("tree", []):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    listed = original_listing(tmp_path)
    assert listed == records.get("listed", [])
    assert original_labels(listed) == records.get("labels", [])
    for count, shares in records.get("shards", {}).items():
        assert [original_share(listed, worker=i, num_workers=int(count)) for i in range(int(count))] == shares


def test_samples_become_bytes_as_in_the_original(golden: Golden) -> None:
    file, matches = _arrays(golden, r"(to_bytes\S*)\.out")
    for match in matches:
        file.check(match[0], to_bytes_truncated(torch.from_numpy(file.input(f"{match[1]}.in"))).to(torch.int64))


def test_low_resolution_condition_equals_the_original(golden: Golden) -> None:
    file, matches = _arrays(golden, r"(lowres\S*)\.area\d+(?:x\d+)?")
    for match in matches:
        height, width = file.arrays[match[0]].shape[-2:]
        large = torch.from_numpy(file.input(f"{match[1]}.large"))
        file.check(match[0], downsample_condition(large, height=height, width=width), rtol=1e-5, atol=1e-6)


def test_enlargement_inside_the_super_resolution_network_equals_the_original(golden: Golden) -> None:
    file, matches = _arrays(golden, r"(superres\S*)\.up\d+(?:x\d+)?")
    for match in matches:
        height, width = file.arrays[match[0]].shape[-2:]
        low = torch.from_numpy(file.input(f"{match[1]}.low"))
        file.check(match[0], upsample_condition(low, height=height, width=width), rtol=1e-5, atol=1e-6)
