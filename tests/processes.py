"""Processes that a test starts: where they listen, what they are, and their end."""

import socket

import psutil


def command_line(process: psutil.Process) -> str:
    """The words that started it; none of one that has just died."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def kill_all_with(name: str, value: str) -> None:
    """Ends the processes in whose environment this stands: those that a test started, and theirs."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                process.kill()
        except psutil.Error:
            continue
