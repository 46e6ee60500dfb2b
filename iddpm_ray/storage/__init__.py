"""Files at URLs of any fsspec scheme: list, read, write whole, create only if absent, delete.

A bare path is a local one. Every function asks the store itself: no listing is ever served from a cache, so what
another machine wrote a moment ago is seen. What fails for a moment (busy, throttled, cut off) is asked again for half a minute,
see `retry`. Errors are those of Python (FileNotFoundError, PermissionError, OSError) unless said otherwise; `reason` turns any of
them into words without secrets.
"""

from iddpm_ray.storage.files import (
    Entry,
    FileInfo,
    absolute,
    check_writable,
    create,
    delete,
    delete_tree,
    exists,
    filesystem,
    find,
    is_dir,
    list_dir,
    make_dirs,
    modified,
    read_bytes,
    size,
    write_checked,
    write_whole,
)
from iddpm_ray.storage.retry import patiently
from iddpm_ray.storage.stream import writing
from iddpm_ray.storage.transient import is_transient
from iddpm_ray.storage.urls import carries_credentials, is_local, is_secret_name, join, name, parent, reason, scheme, shown, without_secrets

__all__ = [
    "Entry",
    "FileInfo",
    "absolute",
    "carries_credentials",
    "check_writable",
    "create",
    "delete",
    "delete_tree",
    "exists",
    "filesystem",
    "find",
    "is_dir",
    "is_local",
    "is_secret_name",
    "is_transient",
    "join",
    "list_dir",
    "make_dirs",
    "modified",
    "name",
    "parent",
    "patiently",
    "read_bytes",
    "reason",
    "scheme",
    "shown",
    "size",
    "without_secrets",
    "write_checked",
    "write_whole",
    "writing",
]
