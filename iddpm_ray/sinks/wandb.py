"""Rows and pictures for Weights & Biases, whose own settings (`WANDB_API_KEY`, `WANDB_MODE=offline`) come from the environment."""

import io
import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from iddpm_ray import storage
from iddpm_ray.sinks.tracker import Entry, keep_id


class WandbTracker:
    """A run at W&B, gone on with at every restart.

    Offline, W&B's files are whole only when it has closed them; then they are copied to `{run}/wandb/`, and
    `wandb sync {run}/wandb/offline-run-*` sends them. What an attempt told that was killed, the next one tells again.
    """

    def __init__(self, run_url: str, *, attempt: int, project: str, name: str, config: Mapping[str, Any]) -> None:
        """Args:
        attempt: whose files these are.
        project: may be `team/project`.
        name: the run's.
        config: the spec, shown beside the numbers.
        """
        import wandb

        self._wandb, self._url, self._attempt = wandb, storage.join(run_url, "wandb"), attempt
        self._local = Path(tempfile.mkdtemp(prefix="iddpm-wandb-"))
        self._told = 0
        entity, _, project = project.rpartition("/")
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            name=name,
            id=keep_id(run_url, "wandb", lambda: secrets.token_hex(8)),
            resume="allow",
            config=dict(config),
            dir=str(self._local),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )

    def holds(self) -> int:
        """What the service says, or the files of closed attempts."""
        return self._copied() if self._run.offline else max(0, self._run.step - 1)

    def tell(self, entries: Sequence[Entry]) -> None:
        """Hands them to W&B's own process, which sends them."""
        for entry in entries:
            pictures = {name: self._wandb.Image(Image.open(io.BytesIO(png))) for name, png in entry.pictures.items()}
            self._run.log({**entry.values, **pictures}, step=entry.step, commit=True)
            self._told = entry.step

    def close(self) -> None:
        """Waits until everything is sent, or written where it is offline."""
        self._run.finish()
        self._wandb.teardown()  # only with the end of W&B's own process is everything in its files
        if self._run.offline:
            self._copy()
        shutil.rmtree(self._local, ignore_errors=True)

    def _copy(self) -> None:
        for folder in self._local.glob("wandb/offline-run-*"):
            for file in folder.rglob("*"):
                inside = file.relative_to(folder)
                if file.is_file() and inside.parts[0] != "logs":
                    storage.write_whole(storage.join(self._url, folder.name, inside.as_posix()), file.read_bytes())
        storage.write_whole(storage.join(self._url, f"a{self._attempt:04d}.json"), json.dumps({"step": self._told}).encode())

    def _copied(self) -> int:
        names = [entry.name for entry in storage.list_dir(self._url) if re.fullmatch(r"a\d+\.json", entry.name)]
        return max((int(json.loads(storage.read_bytes(storage.join(self._url, name)))["step"]) for name in names), default=0)
