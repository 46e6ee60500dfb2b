"""What a URL says by itself, and what an error may say about it."""

import errno
import posixpath
import re

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*)://")
_LOCAL_SCHEMES = frozenset({"file", "local"})
_WEB = r"\b(?:https?|ftps?|webdavs?|davs?)"
_STORE = r"\b(?:s3a?|gs|gcs|abfss?|az|sftp)"
# Keys of S3 may hold a slash, so up to the last @; a port is no password, and buckets have none.
_PASSWORD = re.compile(r"(?:(?<=://)[^/\s:@]*:(?!\d+/)|(?:(?<=s3://)|(?<=s3a://)|(?<=gs://)|(?<=gcs://))[^/\s:@]*:)[^\s]*@")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
# A token goes as the user of the web; a user of sftp is known by a key that no URL holds, and that of abfs is a container.
_WEB_USER = re.compile(rf"(?i){_WEB}://[^/?#\s@]+@")
# With one slash, or three, it is a path to us; what was meant is a URL.
_MISSPELT_USER = re.compile(rf"(?i)(?:({_WEB}:(?:/|///+))[^/?#\s@]+|({_STORE}:(?:/|///+))[^/\s:@]*:(?!\d+/)[^\s]*)@")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*:/+[^\s?/][^\s?]*)\?[^\s=]+=\S*")
_SIGNED = re.compile(r"(?i)[?&][^=&\s]*(?:sig|token|key|secret|passw|credential|auth|pwd|jwt|session)[^=&\s]*=[^&\s]")
# Outside the web # and ; belong to the names of files, as = does.
_PARAMETER = re.compile(
    rf"(?i)({_WEB}:/[^\s?&#;]+(?:[?&#;][^\s?&#;]*)*?)[?&#;](?:[\w.-]*(?:token|secret|passw\w*|pwd|credentials?|signature|api_?key|access_?key"
    r"|jwt|session)|sig|sas|auth|key|code)=[^\s&]\S*"
)
_NAMED_SECRET = re.compile(
    r"(?i)([\"']?[\w-]{0,64}(?:token|secret|passw|passphrase|pwd|credential|signature|api_?key|access_?key|account_?key|private_?key|authorization"
    r"|jwt|(?<![a-z])(?:sas|auth)(?![a-z]))[\w-]{0,64}[\"']?\s*[=:]\s*)"
    r"([\[{][^\n]*|Digest\s[^\n]*|(?:(?:Bearer|Basic|Token|Negotiate)\s+)?b?(?:\"[^\"]*\"|'[^']*'|[^\s,;)}\]]+))"
)
_COOKIE = re.compile(r"(?i)(\b(?:set-)?cookies?[\"']?\s*[=:]\s*)b?(?:\"[^\"]*\"|'[^']*'|[^\n]+)")
_SECRET_ITSELF = re.compile(
    r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)|\bya29\.[\w.-]+|\beyJ[\w-]{8,}(?:\.[\w-]+)*"
    r"|\bhf_[A-Za-z0-9]{8,}|\bglpat-[\w-]{8,}|\bgh[oprsu]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}",
    re.DOTALL,
)
# A word of prose has no digit and is short: "Basic authentication", "Bearer token".
_OFFERED = re.compile(r"(?i)(\b(?:Bearer|Basic)\s+)(?=\S*\d|\S{20})[\w.~+/=-]{8,}")


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
    """The URL as it may be printed: without user, password, query, or a secret behind # or ;."""
    url = _PARAMETER.sub(r"\1", _QUERY.sub(r"\1", url))
    return _USER_INFO.sub("", _PASSWORD.sub("", _MISSPELT_USER.sub(r"\1\2", url)))


def without_secrets(text: str) -> str:
    """Any text as it may be printed: URLs as `shown`, and `***` for the value of whatever is called a key, token, password or the like."""
    text = _COOKIE.sub(r"\1***", _SECRET_ITSELF.sub("***", shown(text)))
    return _OFFERED.sub(r"\1***", _NAMED_SECRET.sub(r"\1***", text))


def is_secret_name(name: str) -> bool:
    """Whether the value of something called so is nobody's business: `aws_secret_access_key`, `token`."""
    return any(pattern.search(f"{name}=x") for pattern in (_NAMED_SECRET, _COOKIE))


def carries_credentials(url: str) -> bool:
    """Whether the URL itself would let a reader of it in: a password or token before the host, or a signature or token behind it."""
    return any(pattern.search(url) for pattern in (_PASSWORD, _WEB_USER, _MISSPELT_USER, _SIGNED, _PARAMETER))


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
