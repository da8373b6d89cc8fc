"""Digests of values and of files, by which runs, data and encoders are compared."""

import hashlib
import json
from pathlib import Path
from typing import Any

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any, length: int = 16) -> str:
    """Return the first `length` hex digits of the SHA-256 of a value as canonical JSON."""
    # Names of files need not be UTF-8.
    content = _CANONICAL.encode(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).hexdigest()[:length]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
