"""The same laws of storage on a local disk, on S3 (moto) and on GCS (a server of ours), each through its real client."""

import io
import multiprocessing.pool
import os
import pickle
import threading
import zipfile
from pathlib import Path

import fsspec
import fsspec.config
import pytest
from gcs_server import GcsServer
from stores import SECRET, base_fixture, gcs_fixture, s3_fixture  # noqa: F401 fixtures are found by being here

from iddpm_ray import storage
from iddpm_ray.errors import SpecError


def test_a_file_is_what_was_written_last(base: str) -> None:
    url = storage.join(base, "run", "spec.yaml")
    assert not storage.exists(url)
    assert storage.size(url) is None
    for content in (b"one", b"", b"three" * 1000):
        storage.write_whole(url, content)
        assert storage.read_bytes(url) == content
        assert storage.size(url) == len(content)
    assert storage.read_bytes(url, start=2, end=7) == b"reeth"
    assert storage.exists(url)
    assert not storage.is_dir(url)
    assert storage.is_dir(storage.parent(url))
    storage.write_checked(url, b"four")
    assert storage.read_bytes(url) == b"four"


def test_colons_are_part_of_a_name(base: str) -> None:
    folder = storage.join(base, "a::b")
    names = ["c::d.png", "e/f::g::h", "zip::i", "memory::j.png"]
    for name in names:
        storage.write_whole(storage.join(folder, name), name.encode())
    assert [file.path for file in storage.find(folder)] == sorted(names)
    assert [entry.name for entry in storage.list_dir(base)] == ["a::b"]
    assert storage.is_dir(folder)
    for name in names:
        assert storage.read_bytes(storage.join(folder, name)) == name.encode()
        assert storage.size(storage.join(folder, name)) == len(name)
    storage.delete_tree(folder)
    assert not storage.exists(folder)


def test_a_chain_is_followed(base: str, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("specs/a.yaml", "run: {}")
    url = storage.join(base, "specs.zip")
    storage.write_whole(url, archive.getvalue())
    assert storage.read_bytes(f"zip://specs/a.yaml::{url}") == b"run: {}"
    fs, path = storage.filesystem(f"simplecache::{url}")
    assert fs.cat_file(path) == archive.getvalue()


def test_an_absent_file_cannot_be_read(base: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(storage.join(base, "absent"))


def test_a_file_is_created_once(base: str) -> None:
    url = storage.join(base, "attempts", "0001.json")
    assert storage.create(url, b"first")
    assert not storage.create(url, b"second")
    assert storage.read_bytes(url) == b"first"


def test_of_many_who_create_at_once_exactly_one_succeeds(base: str) -> None:
    storage.write_whole(storage.join(base, "x"), b"")  # the client is made before the race
    for turn in range(4):
        url, gate = storage.join(base, f"attempts/{turn}"), threading.Barrier(6)

        def race(number: int, url: str = url, gate: threading.Barrier = gate) -> bool:
            gate.wait()
            return storage.create(url, str(number).encode())

        with multiprocessing.pool.ThreadPool(6) as racers:
            won = racers.map(race, range(6))
        assert won.count(True) == 1
        assert storage.read_bytes(url) == str(won.index(True)).encode()


def test_listings_are_sorted_complete_and_never_stale(base: str) -> None:
    run = storage.join(base, "run")
    assert storage.list_dir(run) == []
    assert storage.find(run) == []
    for index in (3, 1, 4, 0, 2, 7, 5):
        storage.write_whole(storage.join(run, f"f{index}"), b"x" * index)
        storage.write_whole(storage.join(run, "deep", "er", f"g{index}"), b"y")
        assert storage.size(storage.join(run, f"f{index}")) == index  # asked for while the folder has been listed
        assert f"f{index}" in [entry.name for entry in storage.list_dir(run)]
    entries = storage.list_dir(run)
    assert [entry.name for entry in entries] == ["deep", "f0", "f1", "f2", "f3", "f4", "f5", "f7"]
    assert [(entry.size, entry.is_dir) for entry in entries] == [(0, True), *((size, False) for size in (0, 1, 2, 3, 4, 5, 7))]
    found = storage.find(run)
    assert [file.path for file in found] == [f"deep/er/g{i}" for i in (0, 1, 2, 3, 4, 5, 7)] + [f"f{i}" for i in (0, 1, 2, 3, 4, 5, 7)]
    assert [file.size for file in found[7:]] == [0, 1, 2, 3, 4, 5, 7]


def test_what_another_client_does_is_seen_at_once(base: str) -> None:
    url = storage.join(base, "run", "marker.json")
    assert not storage.exists(url)
    assert storage.list_dir(storage.join(base, "run")) == []
    other = fsspec.filesystem(storage.scheme(url), skip_instance_cache=True)
    other.makedirs(os.path.dirname(other._strip_protocol(url)), exist_ok=True)
    other.pipe_file(other._strip_protocol(url), b"theirs")
    assert storage.exists(url)
    assert [entry.name for entry in storage.list_dir(storage.join(base, "run"))] == ["marker.json"]
    other.rm_file(other._strip_protocol(url))
    assert not storage.exists(url)
    assert storage.find(storage.join(base, "run")) == []


def test_a_tag_changes_with_the_content(base: str) -> None:
    url = storage.join(base, "data", "a.png")
    storage.write_whole(url, b"one")
    first = storage.find(storage.parent(url))[0]
    storage.write_whole(url, b"two")
    second = storage.find(storage.parent(url))[0]
    assert first.tag
    assert first.tag != second.tag
    assert storage.find(storage.parent(url))[0] == second


def test_a_file_is_no_directory(base: str) -> None:
    url = storage.join(base, "a")
    storage.write_whole(url, b"x")
    for operation in (storage.list_dir, storage.find):
        with pytest.raises(NotADirectoryError):
            operation(url)


def test_deleting_what_is_absent_is_fine(base: str) -> None:
    run = storage.join(base, "run")
    for path in ("a", "b/c", "b/d/e"):
        storage.write_whole(storage.join(run, path), b"x")
    storage.write_whole(storage.join(base, "run2", "a"), b"x")
    storage.delete(storage.join(run, "a"))
    storage.delete(storage.join(run, "a"))
    storage.delete_tree(storage.join(run, "b"))
    storage.delete_tree(storage.join(run, "b"))
    assert storage.find(run) == []
    assert storage.exists(storage.join(base, "run2", "a"))


def test_names_with_odd_characters_survive(base: str) -> None:
    names = ["a b.png", "ü+é.png", "100%25.png", "a=b&c.png", "#1.png"]
    for name in names:
        storage.write_whole(storage.join(base, "odd", name), name.encode())
    assert [file.path for file in storage.find(storage.join(base, "odd"))] == sorted(names)
    assert all(storage.read_bytes(storage.join(base, "odd", name)) == name.encode() for name in names)


def test_a_large_file_goes_in_parts_and_comes_back_whole(base: str) -> None:
    content = os.urandom(1 << 16) * (16 * 101)  # 101 MiB: more than the parts that the clients cut
    url = storage.join(base, "large")
    storage.write_whole(url, content)
    assert storage.size(url) == len(content)
    assert storage.read_bytes(url, start=len(content) - 70_000) == content[-70_000:]
    assert storage.read_bytes(url, start=52_428_700, end=52_428_900) == content[52_428_700:52_428_900]


def test_a_place_that_can_be_written_is_accepted_and_left_as_it_was(base: str) -> None:
    storage.check_writable(storage.join(base, "runs"))
    assert storage.find(storage.join(base, "runs")) == []


def test_many_names_for_one_place() -> None:
    assert storage.join("gs://b/run/", "/checkpoints/", "", "x") == "gs://b/run/checkpoints/x"
    assert storage.join("/", "a") == "/a"
    assert storage.join("runs") == "runs"
    assert storage.join("memory://", "a") == "memory://a"
    assert [storage.parent(url) for url in ("gs://b/x/y/", "gs://b", "/a", "a", "file:///a/b")] == [
        "gs://b/x",
        "gs://b",
        "/",
        ".",
        "file:///a",
    ]
    assert storage.name("gs://b/x/") == "x"
    assert [storage.scheme(url) for url in ("GS://b", "/a", "a/b", "s3://b")] == ["gs", "file", "file", "s3"]
    assert [storage.is_local(url) for url in ("/a", "file:///a", "local:///a", "gs://b")] == [True, True, True, False]
    assert storage.absolute("runs") == os.path.join(os.getcwd(), "runs")
    assert storage.absolute("gs://b/runs") == "gs://b/runs"


def test_a_local_file_is_never_seen_in_half(tmp_path: Path) -> None:
    url, stop, seen = str(tmp_path / "f"), threading.Event(), set()
    contents = [bytes([index]) * 300_000 for index in range(8)]
    storage.write_whole(url, contents[0])

    def look() -> None:
        while not stop.is_set():
            seen.add(storage.read_bytes(url))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(5):
        for content in contents:
            storage.write_whole(url, content)
    stop.set()
    reader.join()
    assert seen <= set(contents)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    with pytest.raises(OSError):
        storage.write_whole(str(tmp_path / "taken"), b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_disk_without_hard_links_still_creates_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(1, "hard links are not permitted here")

    monkeypatch.setattr(os, "link", refuse)
    assert storage.create(str(tmp_path / "a"), b"first")
    assert not storage.create(str(tmp_path / "a"), b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "real" / "sub" / "a.png").write_bytes(b"12")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "cats").symlink_to(tmp_path / "real")
    (tmp_path / "set" / "dogs").symlink_to(tmp_path / "real")
    (tmp_path / "set" / "b.png").symlink_to(tmp_path / "real" / "sub" / "a.png")
    (tmp_path / "set" / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "real" / "sub" / "up").symlink_to(tmp_path / "set")
    found = storage.find(str(tmp_path / "set"))
    assert {file.path: file.size for file in found} == {
        "b.png": 2,
        "cats/sub/a.png": 2,
        "dogs/sub/a.png": 2,
        "gone.png": 0,
    }
    assert next(file.tag for file in found if file.path == "gone.png") == "broken-link"


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_store_is_asked_again(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": gcs_server.url, "token": "anon", "project": "p"})
    url = f"gs://bucket/busy-{status}"
    gcs_server.refuse("POST", f"/upload/.*|busy-{status}", status=status, times=1)
    storage.write_whole(url, b"x")
    gcs_server.refuse("GET", f"busy-{status}", status=status, times=1)
    assert storage.read_bytes(url) == b"x"


@pytest.mark.parametrize("operation", [storage.exists, storage.list_dir, storage.find, storage.size])
def test_a_store_that_refuses_is_not_taken_for_an_empty_one(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch, operation: object
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": gcs_server.url, "token": "anon", "project": "p"})
    storage.write_whole("gs://bucket/closed/a", b"x")
    gcs_server.refuse("GET", r"closed|bucket/o\?", status=403, times=50)
    try:
        with pytest.raises(OSError):
            operation("gs://bucket/closed")  # type: ignore[operator]
    finally:
        gcs_server._refusals.clear()


def test_a_listing_that_fails_anywhere_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    import faulty

    faulty.register()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    url = f"faulty://{tmp_path}"
    assert [file.path for file in storage.find(url)] == ["a/b/c"]
    for k in range(3):
        with faulty.faults(faulty.Fault("ls", at=k, kind="refuse")), pytest.raises(OSError):
            storage.find(url)


def test_a_client_prints_no_traceback_of_an_error_that_it_raises(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": gcs_server.url, "token": "anon", "project": "p"})
    fsspec.filesystem("gs").invalidate_cache()
    gcs_server.refuse("GET", r"refused", status=403, times=50)
    with pytest.raises(Exception, match=r"(?i)forbidden|403|denied|permission"):
        storage.read_bytes("gs://bucket/refused")
    assert not [record for record in caplog.records if record.name.startswith("gcsfs")]


def test_a_place_that_cannot_be_written_is_refused_by_field_url_and_reason(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": gcs_server.url, "token": "anon", "project": "p"})
    gcs_server.refuse("POST", r"/upload/.*locked", status=403, times=1)
    with pytest.raises(
        SpecError, match=r"run.output_dir is not writable: permission denied \(got gs://locked/runs\): name a directory or bucket"
    ):
        storage.check_writable("gs://locked/runs")
    with pytest.raises(SpecError, match=r"data.path is not writable"):
        storage.check_writable("/proc/self/none", field="data.path")


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"no file system is known for gss:// \(got gss://b/x\): use gs://, s3:// or a local path"):
        storage.read_bytes("gss://b/x")


def test_secrets_never_reach_a_message() -> None:
    for text in (
        f"https://user:{SECRET}@host/x failed",
        f"GET https://host/x?X-Amz-Signature={SECRET}&y=1",
        f"bad credentials: token={SECRET}",
        f"{{'aws_secret_access_key': '{SECRET}', 'other': 1}}",
        f"Authorization: Bearer {SECRET}",
        f"secret = {SECRET}, key",
        f"Authorization: Basic {SECRET}",
        f"{{'Authorization': 'Basic {SECRET}', 'Accept': '*/*'}}",
        f"{{'authorization': b'Basic {SECRET}'}}",
        f'Authorization: Digest username="a", response="{SECRET}"',
        f"sent Bearer {SECRET}",
        f"Cookie: a=b; session={SECRET}",
        f"{{'Set-Cookie': 'session={SECRET}; Path=/'}}",
        f"https://host/x#token={SECRET} is gone",
        f"https://host/x;token={SECRET} is gone",
        f"https:/user:{SECRET.replace('/', '-')}@host/x is gone",
        f"bad jwt={SECRET}",
    ):
        said = storage.reason(OSError(text))
        assert SECRET not in said, said
        assert SECRET not in pickle.dumps(SpecError("x", value=storage.shown(text.split()[0]), fix=said)).decode("latin-1")
    for token in ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0", "hf_aBcDeFgHiJkLmNoP", "glpat-aBcD_eFg-HiJkLmNo", "ghp_aBcDeFgHiJkLmNoPqR"):
        assert storage.without_secrets(f"401 for {token}, try again") == "401 for ***, try again"
    for plain in ("Bearer token needed: Basic authentication failed", "the cookie is stale", "hf_hub and code=3", "gs://b/code=3/a;b#c"):
        assert storage.without_secrets(plain) == plain
    assert storage.shown(f"s3://me:{SECRET}@bucket/x") == "s3://bucket/x"
    assert storage.reason(OSError(28, "No space left on device")) == "no space left on device"
    assert storage.reason(PermissionError(13, "x")) == "permission denied"
