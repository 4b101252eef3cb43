"""Answers of the admin server's pages: JSON that clients do not cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web


def answer(value: Mapping[str, Any], status: int = 200) -> web.Response:
    return encoded(json.dumps(value, default=str).encode() + b"\n", status)


def encoded(body: bytes, status: int = 200) -> web.Response:
    """Return the answer for a value that is already encoded as JSON."""
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def not_master(status: Mapping[str, Any], error: str) -> web.Response:
    """Return the refusal (409) by a broker that is not master. It names this broker and, if known, the master."""
    value = {"error": error, "name": status["name"], "role": status["role"]}
    if status.get("holder"):
        value["holder"] = status["holder"]
    return answer(value, 409)
