"""Python values as Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def array(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """Return an array. A lone surrogate, which Java permits in its strings, becomes a question mark."""
    try:
        return pa.array(values, type)
    except UnicodeEncodeError:
        return pa.array([_whole(value) for value in values], type)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    return tuple(map(_whole, value)) if isinstance(value, tuple) else value
