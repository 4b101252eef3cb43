"""The operating system's threads, as the store is given them."""

from __future__ import annotations

import subprocess
import sys

from tests.support.tree import ROOT

# In a process of its own: what goes wrong here is not an exception.
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


def test_a_thread_that_has_ended_may_be_asked_what_it_computed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
