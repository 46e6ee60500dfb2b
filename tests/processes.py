"""Looking at processes that may die meanwhile."""

import psutil


def command_line(process: psutil.Process) -> str:
    """The words that started it; none of one that has just died."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
