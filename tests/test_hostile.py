"""Input made to do harm: refused with one clear message each, and none of it is done. `pytest -s` prints the messages."""

import base64
import contextlib
import io
import json
import logging
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faulty
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from checkpoint.states import DIGEST, save_alone

from iddpm_ray import cli, storage
from iddpm_ray.checkpoint.choose import newest_readable
from iddpm_ray.checkpoint.commit import checkpoint_at, complete, read_marker, verify
from iddpm_ray.checkpoint.index import read_index
from iddpm_ray.checkpoint.inventory import inventory, pick
from iddpm_ray.checkpoint.marker import MARKER, OWN, DamagedError, digest
from iddpm_ray.convert.weight_files import read_weights
from iddpm_ray.data import manifest as manifests
from iddpm_ray.data import tables
from iddpm_ray.data.image import BadPicture, Decoding, decode
from iddpm_ray.data.pack import Packing, pack
from iddpm_ray.errors import DataError, SpecError, UserError
from iddpm_ray.runtime.ending import classify
from iddpm_ray.spec.text import load_mapping, parse_yaml
from iddpm_ray.train.session import LocalSession

MESSAGES: list[tuple[str, str]] = []
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture(scope="module", autouse=True)
def show() -> Iterator[None]:
    yield
    print("\n" + "\n".join(f"[{case}] {message}" for case, message in MESSAGES))


def refused(case: str, kind: type[UserError], action: Callable[[], object], *words: str) -> str:
    """The one message of what must be refused."""
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    MESSAGES.append((case, message))
    assert all(word in message for word in words), message
    assert len(message) < 1000
    return message


class Malice:
    """Whoever unpickles this without care runs its code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"open({str(self.path)!r}, 'w').write('owned')",))


def read(folder: Path, name: str, data: bytes) -> object:
    """Reads a file of weights with that content."""
    (folder / name).write_bytes(data)
    return read_weights(str(folder / name))


def as_torch_saves(content: object) -> bytes:
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def test_a_pickle_that_would_run_code_is_refused_by_name_and_does_not(tmp_path: Path) -> None:
    bad = {"a": Malice(tmp_path / "owned")}
    named = "nice.pt asks for", "exec while it is read, and was refused"
    refused("pickle", UserError, lambda: read(tmp_path, "nice.pt", as_torch_saves(bad)), *named)
    refused("bare pickle", UserError, lambda: read(tmp_path, "nice.pt", pickle.dumps(bad)), "nice.pt is damaged, or no file of")
    assert not (tmp_path / "owned").exists()


def test_a_run_does_not_begin_from_such_a_file(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "pictures")
    (tmp_path / "nice.pt").write_bytes(as_torch_saves({"a": Malice(tmp_path / "owned")}))
    spec = tiny.tiny_spec(tmp_path, init__from=str(tmp_path / "nice.pt"))
    refused("init.from", UserError, lambda: tiny.attempt(spec), "nice.pt asks for", "was refused")
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "runs").exists()


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    save_alone(str(tmp_path), 1)
    for path in Path(complete(str(tmp_path))[0].url).iterdir():
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        else:
            assert path.name == "data-00000-000.bin", "raw bytes, described by tensors.json"


def test_a_weight_file_that_would_unpack_to_much_more_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data.pkl", pickle.dumps({}))
        bomb.writestr("archive/data/0", bytes(200_000_000))
    assert len(out.getvalue()) < 1_000_000
    refused("zip bomb", UserError, lambda: read(tmp_path, "small.pt", out.getvalue()), "small.pt has", "would unpack to 200000")


def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path) -> None:
    for header in (
        {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 2**60]}},
    ):
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + bytes(16)
        refused("safetensors", UserError, lambda data=data: read(tmp_path, "w.safetensors", data), "w.safetensors is damaged")
    refused("safetensors", UserError, lambda: read(tmp_path, "w.safetensors", b"\xff" * 8 + b"{}"), "damaged")


def png(width: int, height: int, *, more: bytes = b"") -> bytes:
    """A PNG whose header claims a size, with next to nothing behind it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def test_a_picture_that_claims_to_be_enormous_is_refused_before_it_is_decoded() -> None:
    data = png(100_000, 100_000)
    assert len(data) < 100
    message = refused(
        "image", BadPicture, lambda: decode(data, Decoding(8, 8), name="cat.png (row 3)"), "cat.png (row 3) claims 100000x100000"
    )
    assert "data.max_pixels" in message


def test_a_picture_whose_text_unpacks_to_gigabytes_is_refused() -> None:
    squeezed = zlib.compress(bytes(100_000_000))
    data = b"icc\0\0" + squeezed
    chunk = struct.pack(">I", len(data)) + b"zTXt" + data + struct.pack(">I", zlib.crc32(b"zTXt" + data))
    refused("image text", BadPicture, lambda: decode(png(8, 8, more=chunk), Decoding(8, 8), name="cat.png"), "cat.png")


def test_yaml_that_grows_or_digs_is_refused() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))
    refused("yaml aliases", SpecError, lambda: parse_yaml(bomb), "anchor or alias", "line 1")
    refused("yaml depth", SpecError, lambda: parse_yaml("a: " + "[" * 5000), "nesting")
    refused("yaml size", SpecError, lambda: parse_yaml("a: " + "x" * 2**21), "characters", "is this the right file?")
    refused("yaml tag", SpecError, lambda: parse_yaml("a: !!python/object/apply:os.system [ls]"), "the tag", "python/object/apply")


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "a..b", "/etc", "a\x1b[2J", "a\nb", "", "-rf", "a" * 101, "\u202ename", "a b"])
def test_a_run_name_that_is_more_than_a_name_is_refused(tmp_path: Path, name: str) -> None:
    message = refused("run.name", SpecError, lambda: tiny.tiny_spec(tmp_path, run__name=name), "run.name", "letters, digits")
    assert not any(ord(character) < 32 and character != "\n" for character in message), "nothing that a terminal would obey"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20):
        save_alone(str(tmp_path / "run"), step)
    (tmp_path / "outside").write_bytes(b"not yours")
    return tmp_path / "run"


def nothing(said: object) -> None:
    """No change."""


def rewrite(run: Path, *, index: Callable[[dict[str, Any]], object] = nothing, marker: Callable[[dict[str, Any]], object]) -> None:
    """Changes tensors.json and marker.json of step 20 as somebody would who can make the hashes right."""
    folder = Path(checkpoint_at(str(run), step=20, attempt=1).url)
    said = json.loads((folder / "tensors.json").read_bytes())
    index(said)
    data = json.dumps(said).encode()
    (folder / "tensors.json").write_bytes(data)
    record = digest(data)
    mark = json.loads((folder / MARKER).read_bytes())
    mark["files"]["tensors.json"] = {"size": record.size, "sha256": record.sha256}
    marker(mark)
    del mark[OWN]
    (folder / MARKER).write_text(json.dumps(mark))


BAD_MARKERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "parent": lambda mark: mark["files"].update({"../../../outside": {"size": 9, "sha256": "0" * 64}}),
    "absolute": lambda mark: mark["files"].update({"/etc/passwd": {"size": 9, "sha256": "0" * 64}}),
    "hidden": lambda mark: mark["files"].update({".ssh": {"size": 9, "sha256": "0" * 64}}),
    "newline": lambda mark: mark["files"].update({"a\nb": {"size": 9, "sha256": "0" * 64}}),
    "negative size": lambda mark: mark["files"]["state.json"].update(size=-1),
    "huge size": lambda mark: mark["files"]["state.json"].update(size=10**30),
    "fraction": lambda mark: mark["files"]["state.json"].update(size=1.5),
    "huge step": lambda mark: mark.update(step=10**40),
    "no files": lambda mark: mark.update(files=[]),
}


@pytest.mark.parametrize("case", BAD_MARKERS)
def test_a_marker_cannot_point_elsewhere_nor_claim_the_impossible(run: Path, case: str) -> None:
    rewrite(run, marker=BAD_MARKERS[case])
    chosen = newest_readable(str(run))
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 10
    MESSAGES.append((f"marker: {case}", chosen.rejected[0]))
    assert chosen.rejected[0].startswith("step-00000020.a0001 is damaged")
    assert (run.parent / "outside").read_bytes() == b"not yours"


def _piece(said: dict[str, Any]) -> dict[str, Any]:
    return said["tensors"]["model.weight"]["pieces"][0]


BAD_INDEXES: dict[str, Callable[[dict[str, Any]], object]] = {
    "parent": lambda said: _piece(said).update(file="../../../outside"),
    "absolute": lambda said: _piece(said).update(file="/etc/passwd"),
    "negative start": lambda said: _piece(said).update(start=-1),
    "huge start": lambda said: _piece(said).update(start=2**62),
    "beyond 64 bits": lambda said: _piece(said).update(length=2**70),
    "negative shape": lambda said: said["tensors"]["model.weight"].update(shape=[-33, -65]),
    "huge shape": lambda said: said["tensors"]["model.weight"].update(shape=[2**40, 2**40]),
    "huge and empty": lambda said: said["tensors"]["odd.empty"].update(shape=[2**62, 2**62, 0], pieces=[]),
    "many axes": lambda said: said["tensors"]["odd.empty"].update(shape=[0] * 1000, pieces=[]),
    "offsets": lambda said: _piece(said).update(offsets=[5, 5]),
    "a hole": lambda said: said["tensors"]["odd.scalar"].update(pieces=[]),
    "no dtype": lambda said: said["tensors"]["model.weight"].update(dtype="os.system"),
    "no mapping": lambda said: said.update(tensors=[1]),
}


@pytest.mark.parametrize("case", BAD_INDEXES)
def test_an_index_cannot_point_elsewhere_nor_claim_the_impossible(run: Path, case: str) -> None:
    rewrite(run, index=BAD_INDEXES[case], marker=nothing)
    checkpoint = checkpoint_at(str(run), step=20, attempt=1)
    words = "step-00000020.a0001 is damaged: its tensors.json does not describe its data files"
    refused(f"index: {case}", DamagedError, lambda: read_index(checkpoint, read_marker(checkpoint)), words)


def test_pieces_that_overlap_and_leave_a_hole_are_refused(run: Path) -> None:
    def twice(said: dict[str, Any]) -> None:
        half = {**_piece(said), "shape": [11, 65], "length": 11 * 65 * 4}
        said["tensors"]["model.weight"]["pieces"] = [half, {**half, "offsets": [5, 0]}, {**half, "offsets": [22, 0]}]

    rewrite(run, index=twice, marker=nothing)
    checkpoint = checkpoint_at(str(run), step=20, attempt=1)
    refused("index: overlap", DamagedError, lambda: read_index(checkpoint, read_marker(checkpoint)), "does not describe its data files")


def test_deep_json_and_a_marker_of_gigabytes_are_damage(run: Path) -> None:
    marker = Path(checkpoint_at(str(run), step=20, attempt=1).url) / MARKER
    for content in (b"[" * 200_000, b'{"a":' * 100_000, b'{"format": ' + b"9" * 10_000 + b"}"):
        marker.write_bytes(content)
        chosen = newest_readable(str(run))
        assert chosen.checkpoint is not None
        assert chosen.checkpoint.step == 10
    MESSAGES.append(("deep JSON", chosen.rejected[0]))
    with open(marker, "wb") as file:
        file.truncate(3 * 2**30)
    chosen = newest_readable(str(run))
    MESSAGES.append(("marker of 3 GiB", chosen.rejected[0]))
    assert "its marker.json has more than 67108864 bytes" in chosen.rejected[0]


def test_a_name_for_rm_cannot_leave_the_run(run: Path) -> None:
    for which in ("../..", "/etc", "step-00000020.a0001/../.."):
        refused("rm", UserError, lambda which=which: pick(inventory(str(run)), which), "no such checkpoint")


def packed_set(root: Path) -> tuple[Path, pa.Table, dict[str, Any]]:
    """A small packed set; the table and the facts of its manifest."""
    tiny.write_pictures(root / "pictures")
    source = manifests.build(str(root / "pictures"))
    pack(Packing(source, "none", Decoding(8, 8, channels=1), 12), str(root / "packed"))
    table = pa.ipc.open_file(str(root / "packed" / "manifest.arrow")).read_all()
    facts = json.loads(table.schema.metadata[b"iddpm_ray.manifest"])
    return root / "packed", table, {**facts, "format": 1}  # which had no checksum


def write_manifest(folder: Path, table: pa.Table, facts: object) -> None:
    with pa.ipc.new_file(str(folder / "manifest.arrow"), table.schema.with_metadata({b"iddpm_ray.manifest": json.dumps(facts)})) as file:
        file.write_table(table.replace_schema_metadata({b"iddpm_ray.manifest": json.dumps(facts)}))


@pytest.mark.parametrize("path", ["../outside.u8", "/etc/passwd", "../../pictures/class0/00.png"])
def test_a_packed_manifest_cannot_name_files_elsewhere(tmp_path: Path, path: str) -> None:
    folder, table, facts = packed_set(tmp_path)
    (tmp_path / "outside.u8").write_bytes(bytes(64 * 12))
    there = pa.array([path] * table.num_rows).dictionary_encode()
    write_manifest(folder, table.set_column(table.schema.get_field_index("path"), "path", there), facts)
    refused("packed path", DataError, lambda: manifests.build(str(folder)), f"{path} is missing")


def test_a_packed_manifest_with_a_flipped_bit_is_damaged(tmp_path: Path) -> None:
    folder, _, _ = packed_set(tmp_path)
    data = bytearray((folder / "manifest.arrow").read_bytes())
    data[data.rindex(b"00.png")] ^= 1
    (folder / "manifest.arrow").write_bytes(data)
    refused("packed manifest", DataError, lambda: manifests.build(str(folder)), "manifest.arrow is damaged: it is not what was written")


def test_a_manifest_that_is_none_is_refused(tmp_path: Path) -> None:
    folder, table, facts = packed_set(tmp_path)
    for change in ({"format": "x"}, {"packed": {"decoding": {"evil": 1}}}, {"packed": [1]}, {"classes": None}):
        write_manifest(folder, table, {**facts, **change})
        refused("manifest", DataError, lambda: manifests.build(str(folder)), "manifest.arrow")
    write_manifest(folder, table.drop_columns(["path"]), facts)
    refused("manifest", DataError, lambda: manifests.build(str(folder)), "is no manifest")
    (folder / "manifest.arrow").write_bytes(b"ARROW1\0\0" + b"\xff" * 100 + b"ARROW1")
    refused("manifest", DataError, lambda: manifests.build(str(folder)), "cannot be read")


def test_a_parquet_group_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"image": [bytes(3_000_000)] * 4}), tmp_path / "bomb.parquet", compression="zstd", use_dictionary=False)
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    monkeypatch.setattr(tables, "_GROUP_BYTES", 10_000_000)
    rows = np.array([0])
    message = refused(
        "parquet",
        DataError,
        lambda: tables.read_pictures(str(tmp_path), ["bomb.parquet"], rows, versions=[(1, "")], image_column="image"),
        "row group 0 claims 120",
    )
    assert "smaller row groups" in message


URLS = {
    "password": f"s3://AKIAEXAMPLE:{SECRET}@bucket/x",
    "signed": f"https://host/x?X-Amz-Expires=600&X-Amz-Signature={SECRET}",
    "token": f"gs://bucket/x?access_token={SECRET}",
    "chained": f"simplecache::s3://AKIAEXAMPLE:{SECRET}@bucket/x",
    "sas": f"abfs://container/x?sv=2024&sig={SECRET}",
    "user": f"https://{SECRET.replace('/', '-')}@host/x",
    "chained user": f"simplecache::HTTPS://{SECRET.replace('/', '-')}@host/x",
    "webdav": f"webdav://{SECRET.replace('/', '-')}@host/x",
    "pwd": f"https://host/x?pwd={SECRET}",
    "jwt": f"https://host/x?jwt={SECRET}",
    "code": f"https://host/x?v=1&code={SECRET}",
    "fragment": f"https://host/x#token={SECRET}",
    "second in the fragment": f"https://host/x#state=1&access_token={SECRET}",
    "parameter": f"https://host/x;token={SECRET}",
    "one slash": f"https:/user:{SECRET.replace('/', '-')}@host/x",
    "three slashes": f"https:///user:{SECRET.replace('/', '-')}@host/x",
    "one slash of a bucket": f"s3:/AKIAEXAMPLE:{SECRET}@bucket/x",
}


@pytest.mark.parametrize("case", URLS)
@pytest.mark.parametrize("field", ["run.output_dir", "data.path", "init.from"])
def test_credentials_in_a_url_of_the_spec_are_refused_and_not_repeated(tmp_path: Path, case: str, field: str) -> None:
    changes = {field.replace(".", "__"): URLS[case]}
    message = refused(
        f"{case} in {field}", SpecError, lambda: tiny.tiny_spec(tmp_path, **changes), field, "holds credentials", "environment"
    )
    assert_clean(message)


def assert_clean(text: str) -> None:
    """The secret is not there, nor any longer part of it."""
    assert not [SECRET[i : i + 10] for i in range(len(SECRET) - 9) if SECRET[i : i + 10] in text], text
    assert base64.b64encode(SECRET.encode()).decode()[:20] not in text


@pytest.mark.parametrize("url", ["s3://KEY:123/45secret67890@bucket/x", "gs://1:2/secret@bucket", "https://u:80a@h/x", "s3://k:s/e/c@b"])
def test_a_key_that_looks_like_a_port_is_none(url: str) -> None:
    assert storage.carries_credentials(url)
    assert "@" not in storage.shown(url)
    assert "sec" not in storage.without_secrets(f"cannot read {url}")


def test_an_ordinary_url_holds_none(tmp_path: Path) -> None:
    for url in (
        "gs://b/x",
        "http://localhost:8080/a@b",
        "s3://bucket/user@example.com/x",
        "sftp://anna@host/x",
        "abfs://container@account.dfs.core.windows.net/x",
        "/a/b?c",
        "https://h/x?v=1",
    ):
        assert not storage.carries_credentials(url)
        tiny.tiny_spec(tmp_path, data__path=url)


@pytest.mark.parametrize(
    "url",
    [
        "https://h/a;v=2/x#part=3",
        "https://h/code=3/x",
        "s3://b/code=3/x",
        "gs://b/key=3/token=4/x",
        "gs://b/run#2;v=3/x",
        "/data/a#b;c=1/session=2",
        "/data/s3:/x",
        "/mirror/https:/example.com/a@b",
        "s3:/bucket/anna@example.com:8",
    ],
)
def test_names_of_folders_are_no_credentials(url: str, tmp_path: Path) -> None:
    assert not storage.carries_credentials(url)
    assert storage.shown(url) == url
    tiny.tiny_spec(tmp_path, data__path=url)


COMMANDS = [
    [f"storage.secret_access_key={SECRET}"],
    [f"--aws-secret={SECRET}"],
    [f"--token={SECRET}", "x.yaml"],
    [f"https://host/spec.yaml?sig={SECRET}", f"s3://K:{SECRET}@b/spec.yaml"],
    ["--preset", "cifar10", f"data.path={URLS['password']}"],
    ["--preset", "cifar10", f"run.output_dir={URLS['signed']}"],
    [f"data.pth={URLS['password']}"],
    [f"s3://K:{SECRET}@nowhere-at-all/spec.yaml"],
]


@pytest.mark.parametrize("argv", COMMANDS, ids=range(len(COMMANDS)))
def test_no_error_of_the_command_line_repeats_a_secret(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.storage, "read_bytes", cut_off)
    assert_clean(refused("command line", SpecError, lambda: cli.parse(argv)))


def cut_off(url: str, **_: object) -> bytes:
    raise PermissionError(13, f"no: {url} with secret_key='{SECRET}'")


def test_an_unknown_key_of_a_spec_does_not_show_what_it_was_given() -> None:
    given = {"run": {"name": "a", "output_dir": "/r"}, "data": {"path": "/d"}, "train": {"duration": "1 step"}}
    for extra in ({"storage": {"token": SECRET}}, {"aws_secret_access_key": SECRET}, {"data": {"path": "/d", "secret": SECRET}}):
        assert_clean(refused("unknown key", SpecError, lambda extra=extra: load_mapping({**given, **extra}), "no such field"))


DEEP: list[dict[str, Any]] = [
    {"token": {"refresh_token": SECRET}},
    {"secret": ["AA", SECRET]},
    {"credentials": {"value": SECRET}},
    {"pwd": SECRET},
    {"sas": SECRET},
    {"auth": ["anna", SECRET]},
    {"passphrase": SECRET},
    {"client": {"auth": {"user": "anna", "is": [SECRET]}}},
]


@pytest.mark.parametrize("options", DEEP, ids=range(len(DEEP)))
def test_no_error_shows_what_lies_below_a_name_of_secrets(options: dict[str, Any]) -> None:
    """Under a field that there is not, in the place of one that there is, and on the command line."""
    given: dict[str, Any] = {"run": {"name": "a", "output_dir": "/r"}, "data": {"path": "/d"}, "train": {"duration": "1 step"}}
    unknown = {**given, "data": {"path": "/d", "storage_options": options}}
    assert_clean(refused("deep", SpecError, lambda: load_mapping(unknown), r"data.storage_options: no such field"))
    for wrong in (options, [options]):
        assert_clean(refused("deep", SpecError, lambda wrong=wrong: load_mapping({**given, "data": {"path": wrong}}), "data.path", "***"))
    for yaml in (json.dumps(options), yaml_of(options)):
        for word in (
            f"data.storage_options={yaml}",
            f"data={{path: /d, options: {yaml}}}",
            f"--options={yaml}",
        ):
            assert_clean(refused("deep", SpecError, lambda word=word: cli.parse(["--preset", "cifar10", word])))


def yaml_of(options: dict[str, Any]) -> str:
    return json.dumps(options).replace('"', "")


def test_errors_of_workers_and_data_repeat_no_secret() -> None:
    error = RuntimeError(f"PUT https://host/x?X-Goog-Signature={SECRET} failed: Authorization: Bearer {SECRET}")
    ending = classify(None, error)
    assert_clean(str(ending.error))
    MESSAGES.append(("ending", str(ending.error)))
    assert_clean(refused("data.path", DataError, lambda: manifests.build(URLS["password"]), "holds credentials"))
    for text in (
        f"{{'private_key': '{SECRET}'}}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"token ya29.{SECRET.replace('/', '-').replace('+', '-')}",
        f"s3://AKIA:{SECRET}@bucket is absent",
    ):
        said = storage.reason(OSError(text))
        assert SECRET[:10] not in said, said


def test_a_planted_secret_is_in_no_line_and_no_file_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In the environment, in fsspec's configuration, and in what the store says when it fails, in a run that saves with trouble."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("FSSPEC_S3_SECRET", SECRET)
    faulty.register()
    tiny.write_pictures(tmp_path / "pictures")
    caplog.set_level(logging.INFO)
    real = faulty.FaultyFileSystem.pipe_file

    def chatty(self: Any, path: str, value: bytes, **options: Any) -> None:
        if "step-00000001" in path or "tensorboard" in path:
            raise PermissionError(13, f"PUT https://store/x?X-Amz-Signature={SECRET} refused; secret_key={SECRET}")
        real(self, path, value, **options)

    monkeypatch.setattr(faulty.FaultyFileSystem, "pipe_file", chatty)
    session = LocalSession()
    changes = {"run__output_dir": f"faulty://{tmp_path}/runs", "checkpoint__every": "1 steps", "train__duration": "3 steps"}
    with contextlib.suppress(UserError):
        tiny.attempt(tiny.tiny_spec(tmp_path, log__tensorboard=True, **changes), session)
    said = capfd.readouterr()
    assert any("NOT saved" in line for line in session.messages)
    MESSAGES.append(("failed save", next(line for line in session.messages if "NOT saved" in line)))
    formatter = logging.Formatter()
    texts = ["\n".join(session.messages), said.out, said.err, *(formatter.format(record) for record in caplog.records)]
    for text in texts:
        assert_clean(text)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    assert verify(complete(f"{tmp_path}/runs/tiny")[0]).spec_digest != DIGEST
