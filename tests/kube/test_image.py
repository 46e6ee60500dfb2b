"""The Dockerfile: what it copies is there, what it installs is pinned; and, where root allows, its own steps run in a root of their own.

No builder of images is needed. The clean root is an overlay over this machine's, in which a fresh Python stands at /usr/local as in
the base image; every RUN is executed in it, in order, as written, except `apt-get`, whose packages are looked for instead.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "k8s" / "images" / "Dockerfile"
PACKAGES = {"bash": "bash", "g++": "g++", "wget": "wget"}


@dataclass(frozen=True)
class Step:
    """One instruction."""

    word: str
    rest: str


def steps() -> list[Step]:
    text = re.sub(r"\\\n\s*", " ", "\n".join(line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")))
    return [Step(*line.split(maxsplit=1)) if " " in line else Step(line, "") for line in text.splitlines() if line.strip()]


def of(word: str) -> list[str]:
    return [step.rest for step in steps() if step.word == word]


def context() -> list[str]:
    """The files of the repository that reach the builder, by the rules of .dockerignore."""
    rules = [line for line in FILE.with_name("Dockerfile.dockerignore").read_text().splitlines() if line]
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    assert rules[0] == "*"
    return allowed


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    for rest in of("COPY"):
        *sources, _ = rest.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, rule) for rule in context()), source


def test_it_runs_as_nobody_in_particular_where_the_program_lies() -> None:
    assert of("USER") == ["1000"]
    assert of("WORKDIR") == ["/home/ray/app"]
    assert any("--uid 1000" in rest for rest in of("RUN"))
    assert [rest for rest in of("COPY") if rest == "jobs jobs"], "python jobs/train.py works from the WORKDIR"
    assert of("ENTRYPOINT") == of("CMD") == [], "the operator's command has to stay process 1"


def test_versions_are_those_of_the_laptop() -> None:
    installs = [rest for rest in of("RUN") if "pip install" in rest]
    assert "--constraint constraints.txt" in installs[0]
    assert "--no-deps" in installs[1]
    (base,) = of("FROM")
    assert base.startswith(f"python:{sys.version_info.major}.{sys.version_info.minor}-slim")
    declared = (ROOT / "pyproject.toml").read_text()
    assert "ray[default,train]" in declared, "without `default` there is no job API, and KubeRay's probes never pass"


def test_no_token_is_baked_in_and_a_compiler_is() -> None:
    assert "test ! -e /home/ray/.ray/auth_token" in of("RUN")[-1]
    assert "g++" in of("RUN")[0], "torch.compile calls it"


def why_not() -> str:
    if os.geteuid() != 0:
        return "root is needed for a root file system of its own"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 and shutil.which("chroot") else "unshare or chroot does not work here"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_its_steps_run_in_a_clean_root(tmp_path: Path) -> None:
    """As root and then as uid 1000; packages come from wherever pip is told to look."""
    root = tmp_path / "root"
    for name in ("disk", "root"):
        (tmp_path / name).mkdir()
    lines = [
        "set -eu",
        f"mount -t tmpfs -o size=12g tmpfs {tmp_path}/disk",
        f"mkdir {tmp_path}/disk/up {tmp_path}/disk/work",
        f"mount -t overlay overlay -o lowerdir=/,upperdir={tmp_path}/disk/up,workdir={tmp_path}/disk/work {root}",
        f"mount --rbind /dev {root}/dev",
        f"mount -t proc proc {root}/proc",
        f"mount -t tmpfs tmpfs {root}/tmp",
        f"chmod 1777 {root}/tmp",
        f"mount -t tmpfs -o mode=700 tmpfs {root}/root",  # nothing of whoever runs this
        f"[ ! -d {root}{sys.prefix} ] || mount -t tmpfs tmpfs {root}{sys.prefix}",  # nor the environment, if /tmp did not hide it
        f"mkdir {root}/tmp/context",
        *(f"cp -r {ROOT / source} {root}/tmp/context/" for source in context() if "*" not in source),
        f"rm -rf {root}/usr/local/bin {root}/usr/local/lib/python3* {root}/home/ray",
        *(f"awk -F: '$3 < 1000' /etc/{name} > {root}/etc/{name}" for name in ("passwd", "group")),  # a base image has no people
        f"cp -r {sys.base_prefix}/. {root}/usr/local/",
        f"rm -rf {root}/usr/local/lib/python3.11/site-packages && mkdir {root}/usr/local/lib/python3.11/site-packages",
        f"chroot {root} /sbin/ldconfig",  # its libpython was somewhere else
        f"chroot {root} /usr/local/bin/python3 -m ensurepip --upgrade",
        f"ln -sf python3 {root}/usr/local/bin/python && ln -sf pip3 {root}/usr/local/bin/pip",
    ]
    workdir, user = "/", ""
    cpu = "export TORCH_INDEX=${PIP_EXTRA_INDEX_URL:-}"
    for step in steps():
        inside = f"cd {workdir} && {cpu} && PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        match step.word:
            case "WORKDIR":
                workdir = step.rest
                lines.append(f"mkdir -p {root}{workdir}")
            case "USER":
                user = f"--userspec={step.rest}:{step.rest}"
            case "COPY":
                *sources, target = step.rest.split()
                lines += [f"cp -r {root}/tmp/context/{source} {root}{workdir}/{target}" for source in sources]
            case "RUN" if step.rest.startswith("apt-get"):
                asked = re.search(r"--no-install-recommends ([^&]+)", step.rest)
                assert asked is not None
                assert asked[1].split() == list(PACKAGES)
                lines += [f"chroot {root} /bin/sh -c 'command -v {program}'" for program in PACKAGES.values()]
            case "RUN":
                home = "HOME=/home/ray" if user else "HOME=/root"
                lines.append(f"echo '>>> {step.rest.split()[0]}'")
                lines.append(f"{home} chroot {user} {root} /bin/sh -ec {shlex.quote(f'{inside}; {step.rest}')}")
    done = subprocess.run(["unshare", "-m", "/bin/bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=1700, check=False)
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "imagenet64-uncond" in done.stdout
    assert "ray, version 2.60.0" in done.stdout
