"""Places to store things for tests: a local disk, S3 (moto) and GCS (a server of ours), each through its real client."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import fsspec.config
import gcsfs.core
import pytest
from gcs_server import GcsServer
from s3_server import S3Server

SECRET = "sesame-open-31415"


@pytest.fixture(scope="session", name="s3_server")
def s3_fixture() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session", name="gcs_server")
def gcs_fixture() -> Iterator[GcsServer]:
    for scheme in ("gs", "gcs"):  # without the lookup of a bucket's kind over gRPC, which needs Google's own server
        fsspec.register_implementation(scheme, gcsfs.core.GCSFileSystem, clobber=True)
    with GcsServer(page_size=3) as server:
        yield server


@pytest.fixture(params=["local", "s3", "gcs"], name="base")
def base_fixture(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of its own for a test, on each kind of store."""
    if request.param == "local":
        return str(tmp_path)
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3_server").url
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint, "key": "someone", "secret": SECRET})
        fsspec.filesystem("s3").mkdir(f"bucket-{tmp_path.name.lower().replace('_', '-')}"[:60])
        return f"s3://bucket-{tmp_path.name.lower().replace('_', '-')}"[:65]
    server = request.getfixturevalue("gcs_server")
    options = {"endpoint_url": server.url, "token": "anon", "project": "p"}
    monkeypatch.setitem(fsspec.config.conf, "gs", options)
    monkeypatch.setitem(fsspec.config.conf, "gcs", options)
    return f"gs://bucket/{tmp_path.name}"
