"""What is rendered is a function of the spec, fits its machines, and is what Ray's own autoscaler reads out of it."""

import ast
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from iddpm_ray.cli import read_spec
from iddpm_ray.errors import SpecError
from iddpm_ray.kube import render
from iddpm_ray.kube.lint import judge
from iddpm_ray.kube.machines import MACHINES
from iddpm_ray.kube.names import object_name
from iddpm_ray.kube.pods import RAY_VERSION
from iddpm_ray.kube.shape import drain_seconds, shape, with_headroom
from iddpm_ray.spec.kube import Machine
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_text

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "k8s" / "examples"
JUDGED = ["data.labels=folder", "evaluate.every=1 epoch", "evaluate.features=digits-classifier"]
IMPOSSIBLE = ("foo", "foo bar:1", "foo:latest", "a:80/foo", "r/Foo:1", "http://r/foo:1", "foo@sha256:12", "foo:")
SPECS = sorted(path for path in EXAMPLES.glob("*.yaml") if path.name.count(".") == 1)


def spec_with(*overrides: str) -> JobSpec:
    return read_spec(str(EXAMPLES / "cats.yaml"), overrides=overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        render.job(spec_with(*overrides))
    return str(caught.value)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_committed_examples_are_what_is_rendered(path: Path) -> None:
    spec = read_spec(str(path))
    for kind, objects in (("rayjob", render.job(spec)), ("raycluster", render.cluster(spec))):
        committed = (path.parent / f"{path.stem}.{kind}.yaml").read_text(encoding="utf-8")
        assert committed == render.to_yaml(objects)
        assert list(yaml.safe_load_all(committed)) == objects


LOOKS_LIKE_MORE = """
1e-4 12e3 13848743748e0030 1E5 +1.e2 0o17 0x1f 0b11 017 1_000 12:30 12:30:45.5 .5 -7 +1 1.5 .inf -.INF .nan
2026-11-20 2026-11-20T10:00:00Z 8Gi y N yes No ON off true FALSE null NULL ~ = <<
"""


def test_text_that_looks_like_a_number_or_a_word_of_yaml_is_quoted() -> None:
    """By the rules of YAML 1.1, YAML 1.2, and kubectl, which has some of each."""
    for text in LOOKS_LIKE_MORE.split():
        assert render.to_yaml([{"key": text, text: 1}]) == f"key: '{text}'\n'{text}': 1\n"
    for text in ("cats", "/dev/shm", "gs://bucket/runs", "no-cats", "yes2", "e3", "python jobs/train.py"):
        assert render.to_yaml([{"key": text}]) == f"key: {text}\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed: what it makes of the text is not asked")
def test_kubectl_reads_text_as_text(tmp_path: Path) -> None:
    data = {f"key{place}": text for place, text in enumerate(LOOKS_LIKE_MORE.split())}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "annotations": data}, "data": data}
    (tmp_path / "made.yaml").write_text(render.to_yaml([made]))
    command = ["kubectl", "label", "--local", "--filename", str(tmp_path / "made.yaml"), "--output", "json", "a=b"]
    read = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert (read["data"], read["metadata"]["annotations"]) == (data, data)


def test_the_spec_travels_whole_and_waits_for_cold_machines() -> None:
    spec = spec_with()
    spec_map, job = render.job(spec)
    inside = load_text(spec_map["data"]["spec.yaml"], source="the ConfigMap")
    assert inside.digest() == spec.digest()
    assert inside.cluster.start_timeout_s == 1800
    assert inside.model_copy(update={"cluster": spec.cluster}) == spec
    for given, waits in ((60, 1800), (3600, 3600)):
        assert render.for_pods(spec_with(f"cluster.start_timeout_s={given}")).cluster.start_timeout_s == waits
    assert job["metadata"]["labels"]["iddpm/spec"] == spec.digest()[:16]


def test_rayversion_is_the_pinned_one() -> None:
    assert f"\nray=={RAY_VERSION}\n" in (ROOT / "constraints.txt").read_text()


def test_machines_of_the_spec_are_those_known() -> None:
    assert sorted(get_args(Machine)) == sorted(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("capacity", ["spot", "spot-first", "on-demand"])
def test_every_machine_and_capacity_is_without_findings(name: str, capacity: str) -> None:
    machine = MACHINES[name]
    gpus = max(machine.gpus, 1)
    objects = render.job(
        spec_with(
            f"kube.machine={name}",
            f"kube.capacity={capacity}",
            f"cluster.gpus_per_worker={float(bool(machine.gpus))}",
            f"cluster.workers={2 * gpus}",
            "data.tasks=1",
            "cluster.max_hours=3",
        )
    )
    assert [str(one) for one in judge(objects, where=name)] == []


def test_rays_own_autoscaler_reads_the_same_machines_out_of_it() -> None:
    spec = spec_with("kube.machine=g2-standard-24", "cluster.workers=4", "kube.capacity=spot-first")
    (made,) = render.cluster(spec)
    types = _derive_autoscaling_config_from_ray_cr(made)["available_node_types"]
    cut = shape(spec)
    assert types["headgroup"]["resources"]["CPU"] == 0
    for name in ("gpu-spot", "gpu-on-demand"):
        resources = types[name]["resources"]
        assert (resources["CPU"], resources["GPU"], resources["accelerator_type:L4"]) == (cut.cpus, 2, 1)
        assert (types[name]["min_workers"], types[name]["max_workers"]) == (0, 3)
    assert types["gpu-spot"]["priority"] > types["gpu-on-demand"]["priority"]
    assert types["gpu-spot"]["labels"] == {"iddpm/capacity": "spot"}


@pytest.mark.parametrize(("window", "told"), [(15, 12), (105, 95)])
def test_ranks_are_told_less_than_there_is(window: int, told: int) -> None:
    assert drain_seconds(window) == told
    group = render.job(spec_with(f"kube.reclaim_window_s={window}"))[1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    pod = group["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == window
    assert pod["containers"][0]["env"] == [{"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": str(told)}]


@pytest.mark.parametrize(("pods", "most"), [(1, 2), (4, 5), (5, 7), (16, 20)])
def test_there_is_room_for_a_replacement(pods: int, most: int) -> None:
    assert with_headroom(pods) == most


def test_workers_that_do_not_fill_machines_are_refused_here() -> None:
    said = refusal("kube.machine=a2-highgpu-8g", "cluster.workers=6")
    assert said.startswith("cluster.workers (got 6): does not fill machines of 8 GPUs")
    assert "8, or a machine with fewer" in said


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["cluster.gpus_per_worker=0"], "cluster.gpus_per_worker"),
        (["kube.machine=e2-standard-8"], "has no GPU"),
        (["cluster.accelerator_type=H100"], "Ray would wait for ever"),
        (["cluster.cpus_per_worker=8"], 'kube.machine (got "g2-standard-8"): gives a pod 7 CPUs'),
        (["kube.image=null"], "kube.image is needed"),
        (["run.output_dir=/runs"], "would be lost with it"),
        (["cluster.address=10.0.0.1:6379"], "cluster.address"),
        (["kube.capacity=on-demand", "kube.reclaim_window_s=105"], "kube.reclaim_window_s"),
        (["data.path=cats"], "data.path"),
        (["data.path=/data/cats"], "no pod has it"),
        (["init.from=file:///start.pt"], "init.from"),
        (["optim.compile=true", "optim.compile_cache=compiled"], "optim.compile_cache"),
        (["log.sinks=[mlflow]", "log.mlflow_url=/mlflow"], "log.mlflow_url"),
        (["evaluate.every=1 epoch", "evaluate.inception=w.pth", f"evaluate.inception_sha256={'0' * 64}"], "evaluate.inception"),
        ([*JUDGED, "evaluate.reference=train.npz"], "evaluate.reference"),
        (["cluster.object_store_gib=2"], "cluster.object_store_gib"),
        *[([f"kube.image={image}"], "kube.image") for image in IMPOSSIBLE],
        (["kube.machine=h100"], "kube.machine"),
        (["kube.reclaim_window_s=60"], "kube.reclaim_window_s"),
        (["kube.namespace=Iddpm_1"], "kube.namespace"),
    ],
)
def test_what_cannot_run_is_refused_here_and_not_pending_there(overrides: list[str], says: str) -> None:
    assert says in refusal(*overrides)


def test_what_pods_reach_is_taken() -> None:
    everything = [
        *("init.from=hf://org/name@main", "optim.compile=true", "optim.compile_cache=gs://bucket/compiled"),
        *("log.sinks=[mlflow]", "log.mlflow_url=https://mlflow.example", "evaluate.reference=data", *JUDGED),
    ]
    render.job(spec_with(*everything))
    for name in ("iddpm-ray:0.1.0", "localhost:5000/iddpm-ray:v1", "eu.pkg.dev/my-project/iddpm/iddpm_ray"):
        for version in ("", f"@sha256:{'0f' * 32}"):
            image = name + version if ":" in name.rpartition("/")[2] or version else f"{name}:1"
            (_, job) = render.job(spec_with(f"kube.image={image}"))
            assert [str(one) for one in judge([job], where="image") if one.rule == "version"] == []


@pytest.mark.parametrize("name", ["cats", "Cats", "cats_2", "3d-cats", "a" * 100, "a.b.c", "a-b-c", "x" * 47])
def test_names_are_valid_stable_and_never_meet(name: str) -> None:
    made = object_name(name)
    assert made == object_name(name)
    assert len(made) <= 47
    assert made[0].isalpha()
    assert made[-1] != "-"
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert object_name(name + "x") != made


def test_different_names_that_look_alike_do_not_meet() -> None:
    names = ["cats", "Cats", "cats_", "cats.", "CATS"]
    assert len({object_name(name) for name in names}) == len(names)


def test_a_stopping_job_is_granted_its_hours_and_then_some() -> None:
    limits: Any = render.job(spec_with("cluster.max_hours=10"))[1]["spec"]["activeDeadlineSeconds"]
    assert limits == 36000 + 1800 + 600
    after = render.job(spec_with("cluster.max_hours=10", "kube.preflight=true"))[1]["spec"]["activeDeadlineSeconds"]
    assert after == limits + 1800, "preflight waits for machines too, before the run's own hours begin"
    assert "activeDeadlineSeconds" not in render.job(spec_with("cluster.max_hours=null"))[1]["spec"]


def test_preflight_is_the_first_step_where_it_is_wanted() -> None:
    entrypoint = render.job(spec_with("kube.preflight=true"))[1]["spec"]["entrypoint"]
    assert entrypoint == "python jobs/cluster.py preflight /etc/iddpm/spec.yaml && exec python jobs/train.py /etc/iddpm/spec.yaml"


def test_secrets_are_variables_of_every_container_and_their_names_are_kubernetes_names() -> None:
    cluster = render.job(spec_with("kube.secrets=[wandb, s3.keys]"))[1]["spec"]["rayClusterSpec"]
    wanted = [{"secretRef": {"name": "wandb"}}, {"secretRef": {"name": "s3.keys"}}]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert [container["envFrom"] for container in group["template"]["spec"]["containers"]] == [wanted]
    assert "kube.secrets" in refusal("kube.secrets=[My_Key]")


def test_judging_needs_neither_torch_nor_ray() -> None:
    for path in (ROOT / "iddpm_ray/kube").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tops = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        tops |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not tops & {"torch", "ray"}, path
