"""What a process and its children cost, from /proc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.bench.allocations import Counter, counter
from tandemmq.bench.cores import WAYS, summary
from tandemmq.bench.driver.process import cost, descendants
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.interpreters import ask
from tandemmq.bench.peers import ports
from tandemmq.bench.reading import FRAMES, read
from tandemmq.bench.syscalls import counted, counts_in

_BUSY_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "held = bytearray(64 << 20); print(len(held), flush=True); input()"],
                         stdin=subprocess.PIPE)
sum(range(10_000_000))
print("done", flush=True)
input()
child.communicate(b"\\n")
"""


def test_children_count_with_their_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY_PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert {parent.stdout.readline().strip(), parent.stdout.readline().strip()} == {str(64 << 20), "done"}

        family = descendants(parent.pid)
        measured = cost(parent.pid)

        parent.communicate("\n")
    assert len(family) == 2
    assert measured.cpu_seconds > 0
    assert measured.peak_memory_bytes > 64 << 20


def test_a_process_that_is_gone_costs_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert cost(gone.pid).peak_memory_bytes == 0
    assert cost(os.getpid()).peak_memory_bytes > 0


# ---- System calls are counted by the kernel, where perf may


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


# ---- Allocations are counted of a program that was started so


def test_each_object_of_a_program_counts() -> None:
    with counter() as counted:
        if counted is None:
            pytest.skip("no C compiler")
        assert counted.count() == 0
        _count(counted, 0)  # the first compiles what it imports, where that is not kept
        few, many = _count(counted, 0), _count(counted, 100_000)
    assert 100_000 <= many - few < 130_000


def _count(counted: Counter, objects: int) -> int:
    before = counted.count()
    program = f"kept = [object() for _ in bytes({objects})]"
    subprocess.run([sys.executable, "-S", "-c", program], env={**os.environ, **counted.environment}, check=True)
    return counted.count() - before


# ---- Ports that are given out


ROOT = Path(__file__).parents[3]
_ASK_FOR = """
import sys
from tandemmq.bench.peers import ports
ports.FIRST_PORT = ports.LAST_PORT = int(sys.argv[1])
print(ports.free_port())
"""


def _given_to_another(port: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _ASK_FOR, str(port)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ports.free_port()
    monkeypatch.setattr(ports, "FIRST_PORT", port)
    monkeypatch.setattr(ports, "LAST_PORT", port)
    with pytest.raises(OSError, match=f"no free port of 127.0.0.1 among {port} to {port}"):
        ports.free_port()


def test_another_process_gets_another_port() -> None:
    assert _given_to_another(ports.free_port()).startswith("OSError: no free port")


def test_a_port_is_free_again_when_its_process_has_ended() -> None:
    ask = "from tandemmq.bench.peers.ports import free_port; print(free_port())"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    assert _given_to_another(int(done.stdout)) == done.stdout.strip()


# ---- What a second core gives: that each way reads, and is counted


@pytest.mark.parametrize("way", WAYS)
def test_two_at_once_have_a_rate(way: str) -> None:
    rate = WAYS[way](0.05)

    assert rate is None or rate > FRAMES


def test_one_reads_whole_rounds() -> None:
    assert read(0.01) % FRAMES == 0


@pytest.mark.thorough
def test_rates_are_those_of_another_interpreter() -> None:
    told = ask(sys.executable, "tandemmq.bench.cores", "rates", 0.02)

    assert told.keys() == {"one", "of_cpu", *WAYS}
    assert told["threads"] > FRAMES


def test_an_interpreter_that_fails_says_why() -> None:
    with pytest.raises(BenchError, match="no_such_function"):
        ask(sys.executable, "tandemmq.bench.interpreters", "no_such_function")


def test_ratios_are_of_each_round_and_beside_another_python_of_the_cpu() -> None:
    first = [{"one": 100.0, "of_cpu": 100.0, "threads": 80.0}, {"one": 50.0, "of_cpu": 100.0, "threads": 40.0}]
    other = [{"one": 50.0, "of_cpu": 60.0, "threads": 90.0}, {"one": 10.0, "of_cpu": 60.0, "threads": 18.0}]
    ways = dict.fromkeys(WAYS)

    told = summary([ways | run for run in other], [ways | run for run in first])

    assert (told["to_first"], told["threads"]) == (0.6, {"gain": 1.8})
    assert told["processes"] == {"gain": None}
