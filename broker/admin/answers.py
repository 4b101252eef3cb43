"""Answers of the admin server's pages: JSON that clients do not cache, with a limit in bytes, made in steps.

A list ends at the last row that fits, and the answer has the cursor of the next page. The first row of a list is always
included: its length has separate limits (``broker.admin.api.shown_messages``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from aiohttp import web

from tandemmq.broker.core.slices import Work
from tandemmq.broker.engine.slicing import Slices

T = TypeVar("T")
#: Limit of an answer unless the settings change it (``admin.answer_size_max``).
BYTES_MAX: Final = 4 << 20
#: Bytes of JSON that are made in one step.
STEP_BYTES: Final = 16 * 1024
Row = Mapping[str, Any]
#: Answer of ``GET /status``, or a part of it.
Status = dict[str, Any]
#: Returns ``following`` for a row: a request with this value as ``after`` gets the rows after that row.
Cursor = Callable[[Any], str]


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


class Rows:
    """Rows of one page as JSON, as many as fit into ``bytes_max``."""

    __slots__ = ("_left", "parts")

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self.parts: list[bytes] = []

    def add(self, row: Any) -> int:
        """Add a row, and return the length of its JSON. 0: the row does not fit; then do not add later rows."""
        part = json.dumps(row, default=str).encode()
        if self.parts and len(part) > self._left:  # prove: a-page-ends-at-its-bytes
            self._left = 0
            return 0
        self._left -= len(part) + 2
        self.parts.append(part)
        return len(part)

    @property
    def left(self) -> int:
        """Number of bytes that further rows may use."""
        return max(0, self._left)

    @property
    def array(self) -> list[bytes]:
        """JSON array of the rows, in pieces. The caller joins all pieces of an answer once, because each copy of a long
        answer takes time."""
        pieces = [b", "] * (2 * len(self.parts) + 1)
        pieces[1::2] = self.parts
        pieces[0], pieces[-1] = b"[", b"]"
        return pieces if self.parts else [b"[]"]


def json_in_steps(
    value: Mapping[str, Any],
    bytes_max: int = BYTES_MAX,
    cursor: Cursor | None = None,
    all_at: Mapping[str, str] | None = None,
) -> Work[bytes]:
    """Return the JSON of ``value``. All its lists together have at most ``bytes_max`` bytes.

    ``following`` in the JSON is the cursor of the last row in ``items``; ``cursor`` returns it. ``left_out`` in the
    JSON names the other lists that were cut, with the number of missing rows and the page that has all rows
    (``all_at``).
    """
    parts: list[bytes] = []
    left = bytes_max
    left_out: dict[str, Any] = {}
    following: dict[str, Any] = {}

    def add(key: str, *pieces: bytes) -> None:
        parts.append(b"".join((b", " if parts else b"{", json.dumps(key).encode(), b": ")))
        parts.extend(pieces)

    for key, each in value.items():
        if not isinstance(each, list):
            if key != "following":
                add(key, json.dumps(each, default=str).encode())
            continue
        rows = Rows(left)
        step = 0
        for row in each:
            length = rows.add(row)
            if not length:
                break
            step += length
            if step >= STEP_BYTES:
                step = 0
                yield
        missing = len(each) - len(rows.parts)
        if missing and key == "items" and cursor is not None:
            following["following"] = cursor(each[len(rows.parts) - 1])
        elif missing:
            page = (all_at or {}).get(key)
            left_out[key] = {"rows": missing} | ({} if page is None else {"all_at": page})
        left = rows.left
        add(key, *rows.array)
        yield
    if "following" in value:
        add("following", json.dumps(following.get("following", value["following"])).encode())
    if left_out:
        add("left_out", json.dumps(left_out).encode())
    return b"".join((*parts, b"}\n")) if parts else b"{}\n"


class Answers:
    """Makes the answers of one admin server in steps: all its requests share a limited part of each turn of the loop.

    ``bytes_max``: limit of one answer.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._slices: Slices | None = None

    async def run(self, work: Work[T]) -> T:
        """Run ``work`` in steps, and return its result. Raises the exceptions of ``work``. After the caller was
        cancelled, no further step is made."""
        if self._slices is None:
            self._slices = Slices(asyncio.get_running_loop())
        try:
            return await self._slices.run(work)
        finally:
            work.close()

    async def json(
        self,
        value: Mapping[str, Any],
        status: int = 200,
        *,
        cursor: Cursor | None = None,
        all_at: Mapping[str, str] | None = None,
    ) -> web.Response:
        """Answer with ``value``, encoded by ``json_in_steps``."""
        return encoded(await self.run(json_in_steps(value, self.bytes_max, cursor, all_at)), status)


class Shared(Generic[T]):
    """Calls of ``make`` that several callers share. At most one call is in progress and one waits; all callers that
    arrive before the waiting call begins get its result."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._next: asyncio.Task[T] | None = None
        self._turn = asyncio.Lock()

    async def get(self) -> T:
        """Return the result of a call of ``make`` that begins after this call. Raises the exceptions of ``make``."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        async with self._turn:
            self._next = None
            return await self._make()


def page_of(rows: Rows, following: object) -> bytes:
    """Return the JSON of a page of ``rows``, with the cursor ``following``."""
    return b"".join((b'{"items": ', *rows.array, b', "following": ', json.dumps(following).encode(), b"}\n"))


def rendered(rows: Rows, waiting: Sequence[T], render: Callable[[T], Row]) -> Work[int]:
    """Add the waiting items to ``rows``, one in a step. Return the number of items that fit."""
    for number, each in enumerate(waiting):
        if not rows.add(render(each)):
            return number
        yield
    return len(waiting)
