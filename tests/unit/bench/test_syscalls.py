"""System calls are counted by the kernel, where perf may."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tandemmq.bench.syscalls import counted, counts_in


def test_what_was_counted_is_read_and_what_was_not_is_left_out() -> None:
    told = "29;;raw_syscalls:sys_enter;1000;100.00;;\n<not supported>;;syscalls:sys_enter_futex;0;100.00;;\n\nnoise\n"
    assert counts_in(told) == {"syscalls": 29}


def test_the_calls_of_a_process_are_counted() -> None:
    ours, theirs = os.pipe()
    call = f"import os; os.read({ours}, 1); [os.getppid() for _ in range(1000)]; os.read({ours}, 1)"
    process = subprocess.Popen([sys.executable, "-c", call], pass_fds=[ours])
    try:
        with counted(process.pid) as calls:
            os.write(theirs, b"x")
            subprocess.run(["sleep", "0.2"], check=True)
        if not calls:
            pytest.skip("perf is not there, or may not count")
        assert 1000 <= calls["syscalls"] < 5000
    finally:
        os.write(theirs, b"x")
        process.wait()
        os.close(ours)
        os.close(theirs)
