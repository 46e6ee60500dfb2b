"""Alert rules and dashboard as the files of k8s/ that hold them: `python -m iddpm_ray.kube.monitoring k8s` makes them anew."""

import json
import sys
from pathlib import Path

import yaml

from iddpm_ray.kube.alerts import google_rules, prometheus_rule
from iddpm_ray.kube.dashboard import config_map, dashboard


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


def files() -> dict[str, str]:
    """Texts by path below `k8s`."""
    made = "# Made by python -m iddpm_ray.kube.monitoring k8s\n"
    return {
        "components/monitoring-gmp/alerts.yaml": made + _yaml(google_rules()),
        "components/monitoring-promop/alerts.yaml": made + _yaml(prometheus_rule()),
        "components/monitoring-promop/dashboard.yaml": made + _yaml(config_map()),
        "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
    }


def _yaml(one: object) -> str:
    return yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True)


if __name__ == "__main__":
    for name, text in files().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
        print(Path(sys.argv[1]) / name)
