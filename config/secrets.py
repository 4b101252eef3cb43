"""Passwords in settings: recognized by their keys, and not shown in messages, in `config show` or anywhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

MASK: Final = "***"

# user:password@ in a URL. The password may contain any character except '/' and blanks; it ends at the last '@' of its
# part.
_IN_AUTHORITY: Final = re.compile(r"(://[^:/@\s'\"]*):[^/\s'\"]*@")
# password=… in a URL's query or a connection string.
_IN_QUERY: Final = re.compile(r"(?i)\b((?=\w*(?:password|passwd|pwd|secret|token))\w+=)[^&;\s'\"]+")
_KEY: Final = re.compile(r"(?i)password|passwd|pwd|secret|token|digest|credential|api_?key")


def is_secret(key: str) -> bool:
    """Return whether a setting of this name, the last part of its key, is secret as a whole. Files with secrets are
    not."""
    name = key.rpartition(".")[2]
    return bool(_KEY.search(name)) and not name.endswith("_file")


def secrets_in(value: Any, key: str = "") -> Iterator[str]:
    """Yield the secrets in the value of a setting, or in a whole table."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from secrets_in(part, str(name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from secrets_in(part, key)
    elif isinstance(value, str) and value and key and is_secret(key):
        yield value


def masked_text(text: str) -> str:
    """Return the text without the passwords of URLs in it."""
    return _IN_QUERY.sub(rf"\g<1>{MASK}", _IN_AUTHORITY.sub(rf"\g<1>:{MASK}@", text))


def masked(value: Any, key: str = "") -> Any:
    """Return the value of a setting without secrets; of tables and lists, each part."""
    if key and is_secret(key) and value not in (None, ""):
        return MASK
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, dict):
        return {name: masked(part, str(name)) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [masked(part) for part in value]
    return value
