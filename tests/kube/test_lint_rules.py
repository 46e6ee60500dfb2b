"""Every rule is reached by a mistake that some test makes."""

import ast
from pathlib import Path

from kube import test_lint, test_lint_job, test_lint_network, test_lint_place, test_lint_pods, test_lint_set, test_lint_start

ROOT = Path(__file__).parents[2]
TABLES = (test_lint_set, test_lint_network, test_lint_pods, test_lint_place, test_lint_start, test_lint_job)
MISTAKES = [*test_lint.IN_THE_OVERLAY.values(), *test_lint.IN_THE_JOB.values(), *(one for table in TABLES for one in table.BROKEN.values())]


def test_every_rule_is_proven_to_bite() -> None:
    """A rule that no mutation reaches may as well not be there."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "iddpm_ray/kube").glob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Flaw"]
    written = {node.args[1].value for node in calls if isinstance(node.args[1], ast.Constant)}
    assert len(written) > 15
    proven = {rule for _, rule, _ in MISTAKES} | {"build"}
    assert written - proven == set()
    assert len(MISTAKES) > 200
