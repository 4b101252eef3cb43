"""Freed memory returns to the system, with the C library's heap, in a separate process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# The heap has 64 MiB in blocks of 20 KB, and every thousandth block stays.
HEAP = """
    import time
    import os
    from tandemmq.broker.process import memory as module
    from tandemmq.broker.process.memory import PERIOD_SECONDS, FreeMemory, give_back_long_blocks

    statm = os.open("/proc/self/statm", os.O_RDONLY)

    def resident_bytes():
        return module.resident_bytes(statm)

    give_back_long_blocks()
    now = 0.0
    memory = FreeMemory(lambda: now)

    def live(used, periods):
        global now
        for _ in range(periods):
            memory.update(used)
            now += PERIOD_SECONDS

    def wait(condition):
        ends = time.monotonic() + 30.0
        while not condition():
            assert time.monotonic() < ends, "it is not given back"
            time.sleep(0.01)

    live(0, 1)
    blocks = [bytes(20_000) for _ in range(3_300)]
    used = len(blocks) * 20_000
    live(used, 3)
    full = resident_bytes()
"""


def run(text: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(HEAP) + textwrap.dedent(text)], check=True, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_memory_freed_by_clients_is_returned() -> None:
    run("""
        blocks = blocks[::1_000]
        assert full - resident_bytes() < 16 << 20, "glibc alone gives nothing back"
        live(0, 2)
        assert full - resident_bytes() < 16 << 20, "the load may come again"
        live(0, 1)
        wait(lambda: full - resident_bytes() > 50 << 20)
    """)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_memory_that_a_steady_load_frees_stays() -> None:
    run("""
        import threading
        threading.Thread = None  # no thread may begin
        stays = blocks[::1_000]
        for _ in range(5):
            blocks = None
            memory.update(0)
            blocks = [bytes(20_000) for _ in range(3_000)]
            live(used, 1)
    """)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_one_trim_at_a_time_and_none_without_a_thread() -> None:
    run("""
        import threading
        goes_on, trims = threading.Event(), []
        module.trim = lambda: (trims.append(1), goes_on.wait(30))
        kept = [bytes(20_000) for _ in range(3_000)]
        live(0, 5)
        assert len(trims) == 1, trims
        goes_on.set()

        def fail(thread):
            raise RuntimeError("can't start new thread")

        threading.Thread.start = fail
        more = [bytes(20_000) for _ in range(3_000)]
        live(0, 5)
    """)
