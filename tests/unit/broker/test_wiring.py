"""The parts of a broker together: while a thread prepares a body, other threads wait only shortly for the
interpreter."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

from tandemmq.broker.process.switch_interval import SHORT_SECONDS, start
from tandemmq.broker.wiring import _prepare_in_thread


async def test_the_loop_gets_the_interpreter_soon_while_a_body_is_prepared() -> None:
    start()
    usual, is_over = sys.getswitchinterval(), asyncio.Event()
    seen: list[float] = []
    with ThreadPoolExecutor(1) as threads:
        for work in (lambda: seen.append(1.0), lambda: 1 / 0):
            is_over.clear()
            _prepare_in_thread(threads, work, is_over.set)
            seen.append(sys.getswitchinterval())
            await is_over.wait()
            assert sys.getswitchinterval() == usual, "also after an error"
    assert round(seen[-1], 6) == SHORT_SECONDS
