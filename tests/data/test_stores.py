"""The data path on a local disk, on S3 (moto) and on GCS (a server of the tests), each through its real client."""

from pathlib import Path

import numpy as np
import torch
from pictures import file_of, make_folder, make_parquet, noise
from PIL import Image
from stores import base_fixture, gcs_fixture, s3_fixture  # noqa: F401 fixtures are found in the module that uses them

from iddpm_ray import storage
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data.blocks import Share
from iddpm_ray.data.changes import compare
from iddpm_ray.data.image import Decoding
from iddpm_ray.data.load import load
from iddpm_ray.data.local import local_stream
from iddpm_ray.data.pack import Packing, pack, verify

SIZE = Decoding(8, 10)


def upload(folder: Path, url: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            storage.write_whole(storage.join(url, path.relative_to(folder).as_posix()), path.read_bytes())


def test_pictures_in_any_store_train_the_same_also_packed_from_store_to_store(base: str, tmp_path: Path) -> None:
    paths = make_folder(tmp_path / "source", 12)
    url = storage.join(base, "source")
    upload(tmp_path / "source", url)
    here = manifests.build(str(tmp_path / "source"), labels="folder", validation_fraction=0.2)
    there = manifests.build(url, labels="folder", validation_fraction=0.2)
    assert there.column("path", np.arange(12)) == paths
    pack(Packing(there, "folder", SIZE, 5), storage.join(base, "packed"))
    verify(storage.join(base, "packed"))
    packed = manifests.build(storage.join(base, "packed"), labels="folder", validation_fraction=0.2)
    share = Share(seed=1, global_batch=5, decoding=SIZE)
    streams = [local_stream(manifest, share, stop_step=4) for manifest in (here, there, packed)]
    for one, other, third in zip(*streams, strict=True):
        assert one.rows.tolist() == other.rows.tolist() == third.rows.tolist()
        assert torch.equal(one.pixels, other.pixels)
        assert torch.equal(one.pixels, third.pixels)
        assert torch.equal(one.labels, third.labels)


def test_parquet_in_any_store_is_read_by_row_groups(base: str, tmp_path: Path) -> None:
    make_parquet(tmp_path / "source", [file_of(Image.fromarray(noise(i))) for i in range(9)], list(range(9)))
    upload(tmp_path / "source", storage.join(base, "tables"))
    here = manifests.build(str(tmp_path / "source"), labels="column")
    there = manifests.build(storage.join(base, "tables"), labels="column")
    one = manifests.build(storage.join(base, "tables", "part-1.parquet"), labels="column")
    order = np.array([8, 0, 5, 8])
    assert (load(there, order, decoding=SIZE).pixels == load(here, order, decoding=SIZE).pixels).all()
    assert (load(one, np.array([3]), decoding=SIZE).pixels == load(here, np.array([8]), decoding=SIZE).pixels).all()


def test_a_store_tells_when_a_picture_of_the_same_size_changed(base: str, tmp_path: Path) -> None:
    paths = make_folder(tmp_path, 3)
    upload(tmp_path, storage.join(base, "changing"))
    before = manifests.build(storage.join(base, "changing"))
    data = bytearray((tmp_path / paths[1]).read_bytes())
    data[-5] ^= 1
    storage.write_whole(storage.join(base, "changing", paths[1]), bytes(data))
    after = manifests.build(storage.join(base, "changing"))
    assert compare(before, after) == [f"1 changed: {paths[1]} (same size, other content or time)"]
