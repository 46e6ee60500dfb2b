"""The documents are true: every command works, every spec and manifest is one, every link leads somewhere, every message is printed."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from documents import markdown, messages, tables
from documents.programs import Page, flaws
from documents.shell import PROGRAMS, commands, lines

from iddpm_ray import cli
from iddpm_ray.errors import UserError
from iddpm_ray.kube.objects import is_manifest, read_objects
from iddpm_ray.kube.schema import check_schema
from iddpm_ray.spec.fields import fields_of
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping, parse_yaml

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "k8s" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = ("sh", "console")
NEEDED: dict[str, Any] = {"run": {"name": "a", "output_dir": "b"}, "data": {"path": "c"}, "train": {"duration": "1 steps"}}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def specs() -> dict[str, str]:
    """The examples by name, and the specs that pages show under another one."""
    shown = {one: block for path in reversed(PAGES) for one, block in shown_in(text_of(path)).items()}
    return shown | {f"{one}.yaml": text_of(ROOT / "k8s" / "examples" / f"{one}.yaml") for one in ("cats", "digits-cpu")}


def shown_in(text: str) -> dict[str, str]:
    """The YAML blocks of a page that begin with a comment of their name."""
    blocks = [block.text for block in markdown.blocks(text) if block.language == "yaml"]
    return {found[1]: block for block in blocks if (found := re.match(r"# (\S+\.yaml)\n", block))}


def page(text: str, scratch: Path) -> Page:
    variables = set(re.findall(r"^export (\w+)=", text_of(ROOT / "k8s" / "gke" / "variables.sh"), re.MULTILINE))
    assigned = re.findall(r"^(?:\$ )?(?:export .*|[A-Z]\w*=.*)", text, re.MULTILINE)
    variables |= {variable for line in assigned for variable in re.findall(r"\b([A-Z]\w*)=", line)} | {"HOME", "PWD"}
    return Page(specs() | shown_in(text), frozenset(variables), scratch)


def wrong_commands(text: str, scratch: Path) -> list[str]:
    """What is wrong with the commands of a page, each with the line of its block or the words around it."""
    about, found = page(text, scratch), []
    for block in markdown.blocks(text):
        if block.language in ("", *SHELLS):
            try:
                told = lines(block.text, every=block.language == "sh")
                found += [f"line {block.line}: {one.text}: {flaw}" for line in told for one in commands(line) for flaw in flaws(one, about)]
            except ValueError as error:
                found.append(f"line {block.line}: {error}")
    for span in spoken(text):
        found += [f"`{span}`: {flaw}" for one in commands(span) for flaw in flaws(one, about, loose=True)]
    return found


def spoken(text: str) -> list[str]:
    """Commands in running text; several in one, as in render|lint, are no command."""
    return [span for span in markdown.spans(text) if " " in span and span.split()[0] in PROGRAMS and "|" not in span and "'" not in span]


def wrong_yaml(text: str) -> list[str]:
    found: list[str] = []
    for block in markdown.blocks(text):
        if block.language != "yaml":
            continue
        try:
            objects = read_objects(block.text, source="the block")
            if all(is_manifest(one) for one in objects):
                found += [f"line {block.line}: {flaw.path}: {flaw.reason}" for one in objects for flaw in check_schema(one)]
            elif all(one.get("kind") in ("Kustomization", "Component") for one in objects):
                found += [
                    f"line {block.line}: {one} is not there" for one in _named(objects) if not list((ROOT / "k8s").rglob(Path(one).name))
                ]
            else:
                load_mapping(_laid_over(parse_yaml(block.text)))
        except UserError as error:
            found.append(f"line {block.line}: {error}")
    return found


def _named(objects: list[dict[str, Any]]) -> list[str]:
    return [one for each in objects for key in ("resources", "components") for one in each.get(key) or []]


def _laid_over(given: dict[str, Any]) -> dict[str, Any]:
    """A part of a spec as a whole one; a value that ends in ... is not said."""
    from iddpm_ray import presets

    below = parse_yaml(presets.text(given.pop("preset"))) if "preset" in given else {}
    whole: dict[str, Any] = {section: dict(values) for section, values in {**NEEDED, **below}.items()}
    for section, values in given.items():
        if not isinstance(values, dict):
            whole[section] = values
            continue
        said = {key: value for key, value in values.items() if not (isinstance(value, str) and value.endswith("..."))}
        whole[section] = {**NEEDED.get(section, {}), **whole.get(section, {}), **said}
    if whole.get("checkpoint", {}).get("keep_best") or whole.get("evaluate", {}).get("every"):
        whole["evaluate"].setdefault("inception_sha256", "0" * 64)
    if "classifier" in str(whole.get("evaluate", {}).get("features")):
        whole["data"].setdefault("labels", "folder")
    return whole


def broken_links(path: Path, text: str) -> list[str]:
    found: list[str] = []
    for link in markdown.links(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or not file.is_relative_to(ROOT):
            found.append(f"{link} leads nowhere")
        elif anchor and (file.suffix != ".md" or anchor not in markdown.anchors(text if file == path else text_of(file))):
            found.append(f"{link}: no such heading")
    return found


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_command_is_one_that_works(path: Path, tmp_path: Path) -> None:
    assert wrong_commands(text_of(path), tmp_path) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_yaml_block_is_a_spec_or_a_manifest(path: Path) -> None:
    assert wrong_yaml(text_of(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path, text_of(path)) == []


def lost_places(text: str) -> list[str]:
    """Files, and tests in them, that running text names in code and that are not there."""
    found: list[str] = []
    for span in markdown.spans(text):
        file, _, test = span.partition("::")
        if not re.fullmatch(r"(docs|iddpm_ray|jobs|k8s|tests)/[\w./-]+", file) or file.endswith("/"):
            continue
        if not (ROOT / file).exists():
            found.append(f"{file} is not there")
        elif test and f"def {test}(" not in text_of(ROOT / file):
            found.append(f"{file} has no {test}")
    return found


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_file_and_test_that_is_named_is_there(path: Path) -> None:
    assert lost_places(text_of(path)) == []


def test_a_planted_place_is_found() -> None:
    text = "`k8s/bases/x.yaml` `tests/test_cli.py::test_nothing_at_all` `tests/test_cli.py::test_schema_is_json` `jobs/train.py`"
    assert lost_places(text) == ["k8s/bases/x.yaml is not there", "tests/test_cli.py has no test_nothing_at_all"]


def unknown_names(text: str) -> list[str]:
    """Fields and options that running text names in code, and that neither the spec, a module nor a program has."""
    fields, sections = {field.path for field in fields_of(JobSpec)}, "|".join(JobSpec.model_fields)
    found: list[str] = []
    for span in markdown.spans(text):
        field = re.match(rf"((?:{sections})\.[a-z_][a-z_.0-9]*)(?:[=:]|$)", span)
        if field and field[1] not in fields and not (ROOT / "iddpm_ray" / f"{field[1].replace('.', '/')}.py").is_file():
            found.append(f"there is no field {field[1]}")
        option = re.match(r"(--[a-z][\w-]*)", span)
        if option and option[1] not in options():
            found.append(f"no program has the option {option[1]}")
    return found


@cache
def options() -> frozenset[str]:
    """Every option of every program of ours, by its source, and what the tables allow of others."""
    programs = [*(ROOT / "jobs").glob("*.py"), *(ROOT / "iddpm_ray").rglob("*.py"), ROOT / "tests/chaos.py", ROOT / "tests/bench/bench.py"]
    ours = "".join(map(text_of, programs))
    others = {one for table in (tables.KUBECTL, tables.GCLOUD, tables.HELM, tables.DOCKER) for known in table.values() for one in known}
    ways = re.findall(r"f\"--\{prefix\}([\w-]+)\"", ours)
    prefixed = {f"--{prefix}{way}" for prefix in ("", "base-") for way in ways}
    return frozenset({*re.findall(r"\"(--[a-z][\w-]*)\"", ours), *cli.FLAGS, *others, *prefixed, "--job-id"})


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


def quoted(text: str) -> list[str]:
    """What a runbook says that the program prints: code of several words in a paragraph with **Says**, unless it is a command."""
    told = [part for part in markdown.prose(text).split("\n\n") if "**Says**" in part or "**says**" in part]
    found = [span for part in told for span in markdown.spans(part)]
    return [span for span in found if (" " in span or "…" in span) and span != "…" and span.split()[0] not in PROGRAMS]


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
