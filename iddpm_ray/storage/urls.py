"""What a URL says by itself, and what an error may say about it."""

import errno
import posixpath
import re

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*)://")
_LOCAL_SCHEMES = frozenset({"file", "local"})
# Keys of S3 may hold a slash, so up to the last @; a port is no password, and buckets have none.
_PASSWORD = re.compile(r"(?:(?<=://)[^/\s:@]*:(?!\d+/)|(?:(?<=s3://)|(?<=s3a://)|(?<=gs://)|(?<=gcs://))[^/\s:@]*:)[^\s]*@")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
# A token goes as the user of the web; a user of sftp is known by a key that no URL holds, and that of abfs is a container.
_WEB_USER = re.compile(r"(?i)\b(?:https?|ftps?|webdavs?|davs?)://[^/?#\s@]+@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://[^\s?]+)\?[^\s=]+=\S*")
_SIGNED = re.compile(r"(?i)[?&][^=&\s]*(?:sig|token|key|secret|passw|credential|auth|pwd)[^=&\s]*=[^&\s]")
_NAMED_SECRET = re.compile(
    r"(?i)([\"']?[\w-]{0,64}(?:token|secret|passw|passphrase|pwd|credential|signature|api_?key|access_?key|account_?key|private_?key|authorization"
    r"|(?<![a-z])(?:sas|auth)(?![a-z]))[\w-]{0,64}[\"']?\s*[=:]\s*)"
    r"([\[{][^\n]*|(?:Bearer\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s,;)}\]]+))"
)
_SECRET_ITSELF = re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)|\bya29\.[\w.-]+", re.DOTALL)


def scheme(url: str) -> str:
    """The scheme in lower case, "file" for a bare path."""
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else "file"


def is_local(url: str) -> bool:
    """Whether the URL is a path of this machine."""
    return scheme(url) in _LOCAL_SCHEMES


def join(url: str, *parts: str) -> str:
    """Append path parts: join("gs://b/run", "checkpoints", "x") = "gs://b/run/checkpoints/x"."""
    return posixpath.join(url, *(part.strip("/") for part in parts if part.strip("/")))


def parent(url: str) -> str:
    """The URL without its last part; the root of a bucket or disk is its own parent."""
    found = _SCHEME.match(url)
    prefix = found.group(0) if found else ""
    rest = url[len(prefix) :].rstrip("/")
    above = posixpath.dirname(rest)
    return prefix + above if above else (prefix + rest if prefix else ".")


def name(url: str) -> str:
    """The last part of the URL."""
    return posixpath.basename(url.rstrip("/"))


def shown(url: str) -> str:
    """The URL as it may be printed: without user, password, or query."""
    return _USER_INFO.sub("", _PASSWORD.sub("", _QUERY.sub(r"\1", url)))


def without_secrets(text: str) -> str:
    """Any text as it may be printed: URLs as `shown`, and `***` for the value of whatever is called a key, token, password or the like."""
    return _NAMED_SECRET.sub(r"\1***", _SECRET_ITSELF.sub("***", shown(text)))


def is_secret_name(name: str) -> bool:
    """Whether the value of something called so is nobody's business: `aws_secret_access_key`, `token`."""
    return _NAMED_SECRET.search(f"{name}=x") is not None


def carries_credentials(url: str) -> bool:
    """Whether the URL itself would let a reader of it in: a password or token before the host, or a signature or token behind it."""
    return bool(_PASSWORD.search(url) or _WEB_USER.search(url) or _SIGNED.search(url))


def reason(error: BaseException) -> str:
    """Why an operation on a store failed, in words and without secrets."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "no space left on device"
    if isinstance(error, PermissionError) or number == errno.EROFS or str(error).startswith("Forbidden"):
        return "permission denied"
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    text = " ".join(without_secrets(str(error)).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
