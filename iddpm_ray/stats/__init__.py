"""Statistics of a run: `report(name, value)` anywhere, a `Collector` where they are read."""

from iddpm_ray.stats.collect import Collector
from iddpm_ray.stats.moments import Summary
from iddpm_ray.stats.report import Statistics, current, report, report0, report_groups, use
from iddpm_ray.stats.saved import SavedStatistics, gather_state, load_state

__all__ = [
    "Collector",
    "SavedStatistics",
    "Statistics",
    "Summary",
    "current",
    "gather_state",
    "load_state",
    "report",
    "report0",
    "report_groups",
    "use",
]
