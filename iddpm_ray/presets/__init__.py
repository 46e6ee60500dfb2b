"""Published recipes as specs that a person can read; each leaves open only where the run lives and which pictures it sees."""

from importlib import resources
from importlib.resources.abc import Traversable

from iddpm_ray.errors import SpecError
from iddpm_ray.spec.names import closest


def names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml")))


def text(name: str) -> str:
    """The preset as YAML.

    Raises:
        SpecError: if there is none of that name.
    """
    if name not in names():
        raise SpecError(f"there is no preset {name}", fix=f"{closest(name, names())}the presets are {', '.join(names())}")
    return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def summary(name: str) -> str:
    """What the preset is, in one line: the comment it opens with."""
    return text(name).partition("\n")[0].removeprefix("#").strip()


def _folder() -> Traversable:
    return resources.files(__name__)
