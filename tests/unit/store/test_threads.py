"""Threads and inboxes of the operating system, as the store uses them."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from queue import Empty

import pytest

from tandemmq.store.threads import OS_THREADS
from tests.support.tree import ROOT

# In a separate process, because a failure here is not an exception.
PROGRAM = """
import os, threading, time
from tandemmq.store.threads import OS_THREADS
threads = [threading.Thread(target=time.sleep, args=(0.1,)) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
# Python has done with a thread a little before the kernel has.
while any(os.path.exists(f"/proc/self/task/{thread.native_id}") for thread in threads): time.sleep(0.01)
assert {OS_THREADS.cpu_seconds(thread.native_id) for thread in threads} == {0.0}
"""


def test_the_cpu_time_of_an_ended_thread_can_be_read() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_short_wait_for_an_inbox_ends() -> None:
    """Such a wait of ``SimpleQueue`` hangs after some thousand rounds, because its time ends before it checks again."""
    inbox = OS_THREADS.inbox()
    for number in range(20_000):
        inbox.put(number)
        assert inbox.get(timeout=1.0) == number
        with pytest.raises(Empty):
            inbox.get(timeout=1e-7)


def test_an_inbox_returns_the_items_of_many_threads() -> None:
    inbox = OS_THREADS.inbox()

    def put(first: int) -> None:
        for number in range(first, first + 2_000):
            inbox.put(number)

    threads = [OS_THREADS.thread(partial(put, first), "puts") for first in (0, 2_000, 4_000)]
    for thread in threads:
        thread.start()
    found = [inbox.get(timeout=10.0) for _ in range(6_000)]
    assert sorted(found) == list(range(6_000))
    assert [number for number in found if number < 2_000] == list(range(2_000)), "in order of each"
    with pytest.raises(Empty):
        inbox.get_nowait()
