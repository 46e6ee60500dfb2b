"""Files at URLs of any fsspec scheme: list, read, write whole, create only if absent, delete.

A bare path is a local one. Every function asks the store itself: no listing is ever served from a cache, so what
another machine wrote a moment ago is seen. Errors are those of Python (FileNotFoundError, PermissionError, OSError)
unless said otherwise; `reason` turns any of them into words without secrets.
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
from iddpm_ray.storage.urls import is_local, join, name, parent, reason, scheme, shown

__all__ = [
    "Entry",
    "FileInfo",
    "absolute",
    "check_writable",
    "create",
    "delete",
    "delete_tree",
    "exists",
    "filesystem",
    "find",
    "is_dir",
    "is_local",
    "join",
    "list_dir",
    "make_dirs",
    "modified",
    "name",
    "parent",
    "read_bytes",
    "reason",
    "scheme",
    "shown",
    "size",
    "write_checked",
    "write_whole",
]
