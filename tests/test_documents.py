"""The documents are true: every command works, every spec and manifest is one, every link leads somewhere, every message is printed."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import tiny
from documents import markdown, messages, tables
from documents.pages import (
    PAGES,
    ROOT,
    SHELLS,
    broken_links,
    lost_places,
    name,
    quoted,
    text_of,
    unknown_names,
    wrong_commands,
    wrong_yaml,
)
from documents.shell import commands, lines

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # of Ray's own command line


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_command_is_one_that_works(path: Path, tmp_path: Path) -> None:
    assert wrong_commands(text_of(path), tmp_path) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_yaml_block_is_a_spec_or_a_manifest(path: Path) -> None:
    assert wrong_yaml(text_of(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path, text_of(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_file_and_test_that_is_named_is_there(path: Path) -> None:
    assert lost_places(text_of(path)) == []


def test_a_planted_place_is_found() -> None:
    text = "`k8s/bases/x.yaml` `tests/test_cli.py::test_nothing_at_all` `tests/test_cli.py::test_schema_is_json` `jobs/train.py`"
    assert lost_places(text) == ["k8s/bases/x.yaml is not there", "tests/test_cli.py has no test_nothing_at_all"]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_field_and_option_that_is_named_exists(path: Path) -> None:
    assert unknown_names(text_of(path)) == []


def test_a_planted_name_is_found() -> None:
    text = "`optim.learning` `train.loop` `optim.lr=3` `--dry-run` `--no-such 3` `--base-respacing 9` `cluster.mesh.data`"
    assert unknown_names(text) == ["there is no field optim.learning", "no program has the option --no-such"]


def test_the_sums_of_the_first_run_on_gke_are_right() -> None:
    """Each line is price times amount, and the total is their sum; once and by the month apart."""
    table = text_of(ROOT / "docs" / "gke.md").partition("## What it costs")[2].partition("\n## ")[0]
    totals = {"once": 0.0, "month": 0.0}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if re.match(r"\| (?!what|\*\*)\w", line)]
    for _, price, amount, sum_ in rows:
        number = re.match(r"(?:about )?(?:(\d+) x )?([\d.]+) (h|min|GB)$", amount)
        if number is None:
            continue
        value = float(price.split()[0]) * int(number[1] or 1) * float(number[2]) / (60 if number[3] == "min" else 1)
        assert float(sum_.split()[0]) == pytest.approx(value, abs=0.006), sum_
        totals["month" if "month" in sum_ else "once"] += value
    said = re.search(r"\*\*about ([\d.]+), and ([\d.]+) a month\*\*", table)
    assert said is not None
    assert len(rows) > 6
    assert float(said[1]) == pytest.approx(totals["once"], abs=0.05)
    assert float(said[2]) == pytest.approx(totals["month"], abs=0.05)


def test_the_plan_that_the_page_on_gke_shows_is_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [block.text for block in markdown.blocks(text_of(ROOT / "docs" / "gke.md")) if block.text.startswith("compute ")]
    tiny.write_pictures(tmp_path / "pictures", count=128)
    places = [f"data.path={tmp_path / 'pictures'}", f"run.output_dir={tmp_path / 'runs'}"]
    assert runpy.run_path(str(ROOT / "jobs" / "cluster.py"))["main"](["plan", str(ROOT / "k8s/examples/cats.yaml"), *places]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in shown.splitlines() if line not in printed] == []


def test_nobody_waits_for_pods_that_are_not_made_yet_nor_applies_to_a_run_that_is_there() -> None:
    """kubectl ends at once where no object fits a selector, and KubeRay changes no cluster that lives."""
    blocks = [block.text for path in PAGES for block in markdown.blocks(text_of(path)) if block.language == "sh"]
    waits = [line for text in blocks for line in text.splitlines() if line.startswith("kubectl wait")]
    assert waits
    assert [line for line in waits if "--selector" in line or "-l " in line] == []
    applied = [text for text in blocks if re.search(r"render (\S+) > (\S+)\n(.*\n)*kubectl apply .*\2", text)]
    assert applied
    assert [text for text in applied if "stop cats.yaml --forget" not in text.partition("kubectl apply")[0]] == []


def test_every_rule_of_lint_that_is_named_is_one() -> None:
    rules = "".join(text_of(path) for path in (ROOT / "iddpm_ray" / "kube").glob("*.py"))
    named = {rule for path in PAGES for rule in re.findall(r"rule `(\w+)`|`\[(\w+)\]`", text_of(path))}
    assert {"accounts", "secrets", "network", "security", "drain"} <= {one or other for one, other in named}
    assert [one or other for one, other in named if f'"{one or other}"' not in rules] == []


def test_the_documents_hold_what_is_checked() -> None:
    """So that a change of style cannot silence the tests above."""
    told = [
        command
        for path in PAGES
        for block in markdown.blocks(text_of(path))
        if block.language in ("", *SHELLS)
        for command in lines(block.text, every=block.language == "sh")
    ]
    programs = {one.words[0] for line in told for one in commands(line) if one.words}
    assert {"python", "make", "ray", "kubectl", "bash"} <= programs
    assert len(told) > 60


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ("```sh\npython jobs/sample.py RUN --cuont 4\n```", "--cuont"),
        ("```sh\npython jobs/sample.py RUN --coun 4\n```", "--coun"),
        ("```\npython jobs/sampel.py RUN\n```", "jobs/sampel.py is not there"),
        ("```sh\npython jobs/train.py --preset imagenet65 run.name=a\n```", "imagenet65"),
        ("```sh\npython jobs/train.py --preset digits run.name=a run.output_dir=b data.path=c optim.learning=1\n```", "optim.learning"),
        ("```sh\npython jobs/train.py --preset digits run.name=a run.output_dir=b data.path=c optim.lr=fast\n```", "optim.lr"),
        ("```sh\npython jobs/train.py nowhere.yaml\n```", "nowhere.yaml"),
        ("```sh\npython jobs/train.py cats.yaml --dryrun\n```", "--dryrun"),
        (
            "```yaml\n# mine.yaml\nrun: {name: a, output_dir: b}\ndata: {path: c}\ntrain: {durations: 1 steps}\n```\n"
            "```sh\npython jobs/train.py mine.yaml\n```",
            "durations",
        ),
        ("```sh\npython jobs/cluster.py rendr cats.yaml\n```", "rendr"),
        ("```sh\npython jobs/cluster.py submit cats.yaml cluster.workers=6 kube.machine=a2-highgpu-8g\n```", "does not fill"),
        ("```sh\npython jobs/cluster.py drill\n```", "RUN"),
        ("```sh\npython jobs/convert.py export RUN a.pt --wieghts 0.9\n```", "--wieghts"),
        ("```sh\npython tests/chaos.py --kill 3\n```", "--kill"),
        ("```sh\nmake tests\n```", "no target tests"),
        ("```sh\nray job sumbit -- python jobs/train.py cats.yaml\n```", "sumbit"),
        ("```sh\nray job submit --wait -- python jobs/train.py cats.yaml\n```", "--wait"),
        ("```sh\nray job submit -- python jobs/train.py cats.yaml optim.l=3\n```", "optim.l"),
        ("```sh\nkubectl aply --kustomize k8s/overlays/dev-cpu\n```", "aply"),
        ("```sh\nkubectl apply --kustomise k8s/overlays/dev-cpu\n```", "--kustomise"),
        ("```sh\nkubectl apply --kustomize k8s/overlays/dev-gpu\n```", "k8s/overlays/dev-gpu is not there"),
        ("```sh\nkubectl get raypods\n```", "raypods"),
        ("```sh\ngcloud container clusters destroy a\n```", "clusters destroy"),
        ('```sh\ngcloud storage ls "gs://$BUKET"\n```', "$BUKET is set nowhere"),
        ("```sh\nbash k8s/gke/clusters.sh\n```", "k8s/gke/clusters.sh is not there"),
        ("```sh\nfrobnicate --all\n```", "frobnicate"),
        ("Say `make demos` now.", "no target demos"),
        ("Say `python jobs/report.py RUN --htm x`.", "--htm"),
        ("```sh\npython -c 'from iddpm_ray.evaluate.digits import import_digits'\n```", "import_digits"),
        ("```sh\necho 'a\n```", "quotation"),
    ],
)
def test_a_planted_mistake_is_found(planted: str, says: str, tmp_path: Path) -> None:
    (found, *_) = wrong_commands(planted, tmp_path)
    assert says in found


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ("optim: {learning_rate: 1e-4}", "optim.lr"),
        ("optim: {lr: fast}", "optim.lr"),
        ("zzz: 1", "zzz"),
        ("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: a}\nspec: {headGroupSpecs: {}}", "headGroupSpec"),
        ("a: [", "YAML"),
    ],
)
def test_a_planted_block_is_found(planted: str, says: str) -> None:
    (found, *_) = wrong_yaml(f"```yaml\n{planted}\n```")
    assert says in found


def test_a_planted_link_is_found() -> None:
    text = "# A heading\n[a](nothing.md) [b](README.md#no-such) [c](#a-heading) [d](LICENSE) [e](https://example.org/x)"
    assert broken_links(ROOT / "README.md", text) == ["nothing.md leads nowhere", "README.md#no-such: no such heading"]


def test_every_message_of_the_runbook_is_one_that_the_program_prints() -> None:
    said = quoted(text_of(ROOT / "docs" / "runbook.md"))
    assert len(said) > 40
    assert [message for message in said if not messages.is_printed(message)] == []


@pytest.mark.parametrize(
    "message",
    [
        "waiting up to … s (cluster.start_timeout) for room: …",
        "hang: …; ending the attempt",
        "it is in the hands of … since …",
        "waiting up to … s for room: …",
        "… steps in a row had non-finite losses, up to step …",
        "…",
    ],
)
def test_a_message_that_is_not_printed_is_found(message: str) -> None:
    assert not messages.is_printed(message)


def test_every_symptom_of_the_runbook_has_a_check_and_is_in_its_table() -> None:
    text = text_of(ROOT / "docs" / "runbook.md")
    symptoms = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(symptoms) > 15
    assert [title for title, body in symptoms if not [block for block in markdown.blocks(body) if block.language == "sh"]] == []
    assert {link for link in markdown.links(text) if link.startswith("#")} == {f"#{anchor}" for anchor in markdown.anchors(text)} - {
        "#when-something-is-wrong"
    }


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed: the table of its options is not held against it")
def test_kubectl_has_every_option_of_the_table() -> None:
    common = set(re.findall(r"(--?[a-z][\w-]*)", _said("kubectl", "options")))
    for verb, options in tables.KUBECTL.items():
        known = common | set(re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", _said("kubectl", *verb.split(), "--help")))
        assert options <= known, verb


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed: commands are held against the table alone")
def test_gcloud_knows_every_command_of_the_documents(tmp_path: Path) -> None:
    told = [
        line
        for path in PAGES
        for block in markdown.blocks(text_of(path))
        if block.language in ("", *SHELLS)
        for line in lines(block.text, every=False)
        if line.startswith("gcloud ")
    ]
    values = dict(re.findall(r"^export (\w+)=([\w.-]+)", text_of(ROOT / "k8s" / "gke" / "variables.sh"), re.MULTILINE))
    told = [re.sub(r"\$(\w+)", lambda found: values.get(found[1], "x"), line) for line in dict.fromkeys(told)]
    (tmp_path / "commands.json").write_text(json.dumps([{"command_string": line} for line in told]))
    verdicts = json.loads(_said("gcloud", "meta", "lint-gcloud-commands", f"--commands-file={tmp_path / 'commands.json'}"))
    assert [f"{one['command_string']}: {one['error_message']}" for one in verdicts if not one["success"]] == []
