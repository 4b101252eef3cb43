"""Take the messages out of a queue."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tandemmq.client import Client

QUIET_SECONDS: Final = 1.0


def taken(
    to: str, destination: str, most: int = 1_000_000, quiet_seconds: float = QUIET_SECONDS
) -> list[dict[str, Any]]:
    """Take all messages, or the first ``most``, out of a queue; return the headers and body of each, in order."""
    return asyncio.run(_taken(to, destination, most, quiet_seconds))


async def _taken(to: str, destination: str, most: int, quiet_seconds: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with Client(to) as client:
        subscription = await client.subscribe(destination)
        while len(found) < most and (message := await subscription.receive(quiet_seconds)) is not None:
            found.append({**message.headers, "body": message.body})
            await client.acknowledge(message)
    return found
