"""The commands about mastership, and the pages that they request, with real admin servers."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemmq.broker.admin.answers import Answers
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.node_pages import HaPages
from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.ha.states import ANSWERS, RECOGNISED, TRANSITIONS, HandedOver, Moment, NotMaster, Phase, Trouble
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.cli import main
from tandemmq.cli.doctor.errors_command import ADVICE, markdown, tables
from tandemmq.config.load import load
from tandemmq.locker.contract import Holder, LockRequest, LockSettings
from tandemmq.locker.kinds import create
from tandemmq.locker.shared_file import SharedFileLocker
from tests.support.locker.manual_clock import ManualClock


class Node:
    """Parts of a broker that its pages need: a real lock, and a mastership that the test controls."""

    def __init__(self, name: str, directory: Path, start: Callable[[Node], str], keep_alive: float = 0.5) -> None:
        self.name = name
        self.phase = Phase.STANDBY
        self.epoch = 0
        self.reason = "as the test says"
        self.holder: Holder | None = None
        self.waiters: list[Holder] | None = None
        self.holder_silent_seconds: float | None = None
        self.on_handover: Callable[[], None] = lambda: None
        self.ring = EventRing(name, None)
        self.clock = ManualClock()
        settings = LockSettings(lock_keep_alive_period_seconds=keep_alive)
        request = LockRequest(str(directory), Holder(name, pid=4711, host="h"), settings, clock=self.clock)
        self.locker = SharedFileLocker(request)
        self.admin = start(self)

    def rule(self, epoch: int) -> None:
        assert self.locker.try_acquire()
        self.phase, self.epoch = Phase.MASTER, epoch

    async def handover(self) -> HandedOver:
        if self.phase is not Phase.MASTER:
            raise NotMaster(f"this broker is {self.phase.value}: {self.reason}")
        done = HandedOver(self.epoch, 0.012)
        self.phase = Phase.STANDBY
        self.locker.release()
        self.on_handover()
        return done

    def status(self) -> dict[str, Any]:
        role = self.phase.role.value
        answer: dict[str, Any] = {"role": role, "epoch": self.epoch, "name": self.name, "store": "/data"}
        if self.holder is not None:
            answer["holder"] = {"name": self.holder.name, "epoch": self.holder.epoch, "admin": self.holder.admin}
        return answer


@pytest.fixture
def start() -> Iterator[Callable[[Node], str]]:
    """Starts the admin server of a node on a thread that serves them all; gives its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    started: list[tuple[Node, AdminServer]] = []

    def start(node: Node) -> str:
        pages = HaPages(
            node.ring, node.status, node.locker, "shared-file", lambda: node, answers=Answers(500)
        )  # a few events
        server = AdminServer("127.0.0.1", 0, node.status, pages.routes())
        started.append((node, server))
        server.bind()
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
        return server.url

    yield start
    for node, server in started:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        node.locker.release()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture
def pair(start: Callable[[Node], str], tmp_path: Path) -> tuple[Node, Node]:
    """A master, and a standby that knows it."""
    a, b = Node("a", tmp_path, start), Node("b", tmp_path, start)
    a.rule(3)
    b.holder = Holder("a", 3, 4711, "h", a.admin)
    return a, b


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words, env={"TANDEMMQ_CONFIG": None})


NOBODY = "http://127.0.0.1:9"


# ---- handover


def test_a_handover_names_who_took_over(pair: tuple[Node, Node]) -> None:
    a, b = pair

    def take() -> None:
        b.rule(4)
        a.holder = Holder("b", 4, 4711, "h", b.admin)

    a.on_handover = take
    result = run("handover", "--admin", a.admin, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer.pop("seconds") >= 0
    successor = {"successor": "b", "epoch": 4, "admin": b.admin}
    assert answer == {"former": "a", "former_epoch": 3, "released_after_seconds": 0.012, **successor}


def test_a_handover_asked_of_a_standby_ends_with_3_and_names_the_master(pair: tuple[Node, Node]) -> None:
    a, b = pair
    result = run("handover", "--admin", b.admin)
    assert result.exit_code == 3
    assert f"the master is a at {a.admin}" in result.stderr
    assert a.phase is Phase.MASTER


def test_a_handover_without_a_successor_ends_with_1(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    a.on_handover = lambda: a.rule(4)
    result = run("handover", "--admin", a.admin)
    assert result.exit_code == 1
    assert "no other broker took it, so a is master again, of epoch 4" in result.stdout


def test_a_handover_without_a_next_master_in_time_exits_with_1(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    result = run("handover", "--admin", a.admin, "--wait", "0.1")
    assert result.exit_code == 1
    assert "no master was seen in 0.1 s" in result.stdout
    a.rule(5)
    assert run("handover", "--admin", a.admin, "--wait", "0").exit_code == 0


def test_a_page_of_a_foreign_site_cannot_ask_for_a_handover(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    request = urllib.request.Request(f"{a.admin}/handover", b"{}", {"Content-Type": "text/plain"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 415
    refused.value.close()
    assert a.phase is Phase.MASTER


@pytest.mark.parametrize("words", [["handover"], ["lock", "status"], ["failover", "explain"]])
def test_without_a_broker_each_ends_with_3(words: list[str]) -> None:
    result = run(*words, "--admin", NOBODY)
    assert result.exit_code == 3
    assert f"no broker answers at {NOBODY}" in result.stderr


# ---- lock status


def test_lock_status_asks_the_holder_whom_a_standby_names(pair: tuple[Node, Node]) -> None:
    a, b = pair
    a.clock.advance(0.25)
    result = run("lock", "status", "--admin", b.admin)
    assert result.exit_code == 0, result.output
    assert "holder   a (epoch 3, pid 4711, host h)" in result.stdout
    assert "proof    0.250 s old, holds for 4.750 s" in result.stdout
    assert f"waiting  b (admin {b.admin})" in result.stdout
    assert "unsafe" not in result.stdout


def test_lock_status_for_a_machine(pair: tuple[Node, Node]) -> None:
    a, b = pair
    a.clock.advance(6.0)
    a.waiters = [Holder("b", admin=b.admin), Holder("c", pid=5)]
    answer = json.loads(run("lock", "status", "--admin", a.admin, "--admin", b.admin, "--json").stdout)
    assert answer["proof"] == {"age_seconds": 6.0, "holds_for_seconds": -1.0, "holds": False}
    assert answer["waiting"] == [{"name": "b", "admin": b.admin}, {"name": "c", "admin": None}]
    assert answer["all_waiting_are_known"] is True
    assert answer["kind"] == "shared-file"
    assert "has expired" in run("lock", "status", "--admin", a.admin).stdout


def test_a_lock_without_keep_alive_is_shown_as_unsafe(start: Callable[[Node], str], tmp_path: Path) -> None:
    a = Node("a", tmp_path, start, keep_alive=0)
    a.rule(1)
    assert a.locker.proof().valid_for_seconds == math.inf
    result = run("lock", "status", "--admin", a.admin)
    assert "and never ends" in result.stdout
    assert "unsafe   lock_keep_alive_period is 0" in result.stdout


def test_two_brokers_that_claim_the_lock_are_named(start: Callable[[Node], str], tmp_path: Path) -> None:
    a, b = Node("a", tmp_path / "1", start), Node("b", tmp_path / "2", start)
    a.rule(1)
    b.rule(2)
    result = run("lock", "status", "--admin", a.admin, "--admin", b.admin)
    assert "unsafe   a and b all report that they hold the lock" in result.stdout


def test_the_lock_itself_is_asked_when_no_broker_answers(tmp_path: Path) -> None:
    result = run("lock", "status", "--admin", NOBODY, "--data", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert f"lock     shared-file, the lock file {tmp_path}/lock" in result.stdout
    assert "holder   none" in result.stdout
    assert list(tmp_path.iterdir()) == [], "to look is not to take part"
    assert run("lock", "status", "--data", str(tmp_path)).stdout == result.stdout
    result = run("lock", "status", "--admin", NOBODY, "--data", str(tmp_path), "--set", "locker.type=nonsense")
    assert result.exit_code == 2


def test_a_lease_in_a_database_is_asked_with_the_settings_of_its_broker(tmp_path: Path) -> None:
    config = tmp_path / "tandemmq.toml"
    config.write_text(
        f"[store]\ndirectory = '{tmp_path}/data'\n[locker]\ntype = 'lease-database'\n"
        f"data_source = 'sqlite:///{tmp_path}/lock.sqlite'\nlock_acquire_sleep_interval = '20s'\n"
    )
    options = load(config, {}).locker.kind_options()
    lease = LockSettings(lock_acquire_sleep_interval_seconds=20)
    locker = create("lease-database", LockRequest(str(tmp_path), Holder("a", 3, 17, "h"), lease, options))
    assert locker.try_acquire()
    try:
        result = run("lock", "status", "--admin", NOBODY, "--config", str(config))
    finally:
        locker.release()
    assert result.exit_code == 0, result.output
    assert "holder   a (" in result.stdout
    assert "lease    20 s" in result.stdout
    result = run("lock", "status", "--admin", NOBODY, "--config", str(config))
    assert "holder   none" in result.stdout
    wrong = ("--config", str(config), "--set", "locker.data_source=sqlite:///")
    assert run("lock", "status", "--admin", NOBODY, *wrong).exit_code in (1, 2)


def test_a_lock_that_does_not_answer_ends_with_1_and_says_which() -> None:
    place = ["locker.type=database", "locker.data_source=postgresql+psycopg://127.0.0.1:9/nowhere"]
    result = run("lock", "status", "--admin", NOBODY, *(word for one in place for word in ("--set", one)))
    assert result.exit_code == 1, result.output
    assert "127.0.0.1:9/nowhere" in result.stderr
    assert "refused" in result.stderr


# ---- failover explain


def test_failover_explain_merges_both_and_finds_the_master_by_the_standby(pair: tuple[Node, Node]) -> None:
    a, b = pair
    b.ring.record("lock-taken", refused_at_boot=None)
    for kind in ("fenced", "listening", "master"):
        b.ring.record(kind, epoch=2)
    b.ring.record("handover-asked", reason="asked for")
    b.ring.record("draining")
    b.ring.record("lock-released")
    a.ring.record("lock-taken", waited_seconds=1.0, refused_at_boot=a.ring.clock.now().boot_seconds)
    for kind in ("fenced", "replayed", "store-open", "listening", "first-client", "first-receipt"):
        a.ring.record(kind, epoch=3)
    result = run("failover", "explain", "--admin", b.admin)
    assert result.exit_code == 0, result.output
    assert "b (epoch 2) -> a (epoch 3)" in result.stdout
    assert "b handed over: asked for" in result.stdout
    for phase in ("detect", "lock", "fence", "replay", "load", "listen", "first client", "first receipt"):
        assert f"\n  {phase} " in result.stdout
    answer = json.loads(run("failover", "explain", "--admin", b.admin, "--json").stdout)
    assert [broker["name"] for broker in answer["brokers"]] == ["b", "a"]
    first = [event["kind"] for event in answer["outages"][0]["events"]][:3]
    assert first == ["handover-asked", "draining", "lock-released"]
    assert "b (epoch 2) -> a (epoch 3)" in run("failover", "explain", "--admin", b.admin, "--since", "10min").stdout
    nothing = run("failover", "explain", "--admin", b.admin, "--since", "0ms")
    assert "show no change of masters since then" in nothing.stdout
    assert run("failover", "explain", "--admin", b.admin, "--since", "yesterday").exit_code == 2


def test_failover_explain_reads_the_ring_of_a_dead_broker(pair: tuple[Node, Node], tmp_path: Path) -> None:
    a, _ = pair
    dead = EventRing("z", str(tmp_path / "index" / "z.events"))
    dead.start()
    dead.record("lock-taken", refused_at_boot=None)
    dead.record("listening", epoch=2)
    dead.record("lost", trouble="DISK_FAILED", reason="errno 5")
    dead.close()
    a.ring.record("lock-taken", refused_at_boot=None)
    a.ring.record("listening", epoch=3)
    result = run("failover", "explain", "--admin", a.admin, "--admin", NOBODY, "--data", str(tmp_path))
    assert result.exit_code == 0
    assert "z gave up: DISK_FAILED – errno 5" in result.stdout
    assert f"no broker answers at {NOBODY}" in result.stderr


def test_events_and_lock_are_pages(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    for number in range(5):
        a.ring.record("step", number=number)

    def get(page: str) -> Any:
        with urllib.request.urlopen(f"{a.admin}/{page}") as answer:
            return json.load(answer)

    latest = get("events")
    all_of_them = get(f"events?before={latest['earlier']}")["events"] + latest["events"]
    assert [event["facts"]["number"] for event in all_of_them] == [0, 1, 2, 3, 4]
    assert [event["facts"]["number"] for event in get("events?last=2")["events"]] == [3, 4]
    assert get("events?last=0")["events"] == []
    assert get("events")["now"]["boot_id"] == a.ring.clock.boot_id
    assert get("lock")["is_ours"] is True
    with pytest.raises(urllib.error.HTTPError) as refused:
        get("events?last=many")
    assert refused.value.code == 400
    refused.value.close()


# ---- doctor errors


def test_the_tables_of_failures_have_every_transition_and_sign() -> None:
    page = markdown()
    for before, event in TRANSITIONS:
        assert f"`{before.value}`" in page
        assert f"| {event.value} |" in page
    for sign in RECOGNISED:
        assert all(f"`{kind.__name__}`" in page for kind in sign.types)


def test_every_failure_has_an_answer_at_every_moment_and_advice() -> None:
    assert set(ANSWERS) == set(Trouble) == set(ADVICE)
    answer = tables()["troubles"]
    assert {one["trouble"] for one in answer} == {trouble.name for trouble in Trouble}
    for one in answer:
        assert list(one["answers"]) == [moment.value for moment in Moment]
        assert one["seen"]
        assert one["do"]


def test_the_tables_of_failures_have_every_wait_with_its_bound() -> None:
    page = markdown()
    answer = tables()["waits"]
    assert [one["awaited"] for one in answer] == [wait.value for wait in Wait]
    for wait in Wait:
        bound = BOUNDS[wait]
        assert f"| {wait.value} | {bound} | {bound.at_bound} | {bound.notices.value} |" in page


def test_doctor_errors_prints_them() -> None:
    result = run("doctor", "errors")
    assert result.exit_code == 0, result.output
    for trouble in Trouble:
        assert f"{trouble.name}: {trouble.value}" in result.stdout
    assert json.loads(run("doctor", "errors", "--json").stdout) == tables()
    assert run("doctor", "errors", "--markdown").stdout == markdown()
