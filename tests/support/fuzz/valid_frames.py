"""A fuzzer with valid frames of STOMP and OpenWire in any order.

Clients connect and disconnect, send, subscribe, acknowledge, begin and end transactions, and the broker is killed in
between. After each step another client must be served normally, and the log must have no traceback. At intervals the
counts in ``status`` must be within the recorded limits. At the end every confirmed message must be there exactly once,
and no other message.
"""

from __future__ import annotations

import functools
import random
import shutil
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.security.users import User, with_password
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.fuzz.books import DLQ, DONE, TRACE, Books, traceback_of
from tests.support.fuzz.openwire_actor import OpenWireActor
from tests.support.fuzz.stomp_actor import QUEUES, StompActor
from tests.support.fuzz.stomp_client import Refused, Stomp, body_of

CLIENTS_MAX = 4
# At every n-th step counts are checked and a client logs in; a client may leave, the admin server get a request, and
# the broker be killed, which takes a second.
STATUS_EVERY = 5
LOGIN_EVERY = 7
LEAVE_EVERY = 4
ADMIN_EVERY = 6
KILL_EVERY = 12
#: Number of trace lines in the report of a failure.
TRACE_MAX = 2000
SETTLING_SECONDS = 20.0
OPTIONS = (
    "--set", "store.journal_max_file_length=64kb", "--set", "store.checkpoint_interval=200ms",
    "--set", "store.cleanup_interval=100ms", "--set", "security.failed_login_delay=0",
)  # fmt: skip
ADMIN_PAGES = ("status", "metrics", "health", "events?last=5", "lock", "store/why", "nowhere")
ADMIN_CHANGES = ("handover", "store/compact", "store/rebuild-index")
USERS = {"ann": "ann's", "bob": "bob's"}


@functools.cache
def _hashed() -> str:
    """Return the users file; cached, because hashing a password is slow."""
    lines = (with_password(User(name, None, frozenset(), None), password) for name, password in USERS.items())
    return "".join(f"{line}\n" for line in lines)


Actor = StompActor | OpenWireActor


class ValidFrames(RuleBasedStateMachine):
    """Random runs of valid frames of both protocols. The random choices depend only on the steps, not on the timing of
    the broker."""

    def __init__(self) -> None:
        super().__init__()
        TRACE.clear()
        self.directory = Path(tempfile.mkdtemp(prefix="tandemmq-frames-"))
        users = self.directory / "users"
        users.write_text(_hashed())
        self.books = Books()
        self.openwire = free_port()
        self.broker = BrokerProcess(self.directory / "data", "a", *OPTIONS)
        self.broker.leaves_stomp_to_settings = True
        self.broker.options += (
            "--openwire", f"127.0.0.1:{self.openwire}", "--stomp", f"127.0.0.1:{self.broker.stomp}",
            "--set", f"security.users_file={users}",
        )  # fmt: skip
        self.actors: list[Actor] = []
        self.steps = 0
        self.served = 0
        self.broker.start().wait_role("master")
        self.bystander = self._welcome()

    # ---- connections

    @rule(
        version=st.sampled_from(["1.0", "1.1", "1.2"]),
        user=st.sampled_from([None, *USERS]),
        client_id=st.sampled_from([None, "c0", "c1"]),
    )
    def connect_stomp(self, version: str, user: str | None, client_id: str | None) -> None:
        if len(self.actors) >= CLIENTS_MAX:
            return
        headers = {} if user is None else {"login": user, "passcode": USERS[user]}
        if client_id is not None:
            headers["client-id"] = client_id
        try:
            TRACE.append(f"a client of STOMP {version}, {user}, {client_id}")
            self.actors.append(StompActor(Stomp(self.broker.stomp, version, **headers), self.books, client_id))
        except Refused:
            assert client_id is not None, "only a client id can be in use"

    @rule(user=st.sampled_from([None, *USERS]), client_id=st.sampled_from([None, "c0", "c1"]))
    def connect_openwire(self, user: str | None, client_id: str | None) -> None:
        if len(self.actors) >= CLIENTS_MAX:
            return
        actor = OpenWireActor.connect(self.openwire, self.books, user, None if user is None else USERS[user], client_id)
        if actor is not None:
            self.actors.append(actor)
        else:
            assert client_id is not None, "only a client id can be in use"

    @rule(dice=st.integers(0, 1 << 32), times=st.integers(1, 12))
    def act(self, dice: int, times: int) -> None:
        """Let one client make an action that its protocol allows."""
        if not self.actors:
            return
        chance = random.Random(dice)
        actor = chance.choice(self.actors)
        for _ in range(times):
            try:
                actor.act(chance)
            except (ConnectionError, BrokenPipeError):
                actor.close()
            if actor.is_over:
                self.actors.remove(actor)
                return

    @precondition(lambda self: self.steps % LEAVE_EVERY == 0)
    @rule(number=st.integers(0, 99), how=st.sampled_from(["goodbye", "close", "reset", "half"]))
    def leave(self, number: int, how: str) -> None:
        if not self.actors:
            return
        actor = self.actors[number % len(self.actors)]
        try:
            actor.leave(how)
        except ConnectionError:
            actor.close()
        self.actors.remove(actor)

    # ---- the broker

    @precondition(lambda self: self.steps % ADMIN_EVERY == 0)
    @rule(path=st.sampled_from(ADMIN_PAGES), changes=st.sampled_from(ADMIN_CHANGES))
    def ask_admin(self, path: str, changes: str) -> None:
        """Send a request to the admin server, with a token if it changes something."""
        assert self._answer(path, None) < 500, path
        assert self._answer(changes, b"{}") in (401, 404), f"{changes} needs a token"

    def _answer(self, path: str, body: bytes | None) -> int:
        url = f"http://127.0.0.1:{self.broker.admin}/{path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=SETTLING_SECONDS) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    @precondition(lambda self: self.steps % KILL_EVERY == 0)
    @rule()
    def kill(self) -> None:
        """Kill the broker, and start it again."""
        self.broker.kill()
        for actor in self.actors:
            actor.close()
        self.actors = []
        self.broker.start().wait_role("master")
        self.bystander = self._welcome()

    # ---- checks after each step

    @invariant()
    def others_are_served(self) -> None:
        self.steps += 1
        self.served += 1
        name = f"b{self.served}"
        self.bystander.ask("SEND", {"destination": "/queue/bystander", "persistent": "true"}, name.encode())
        frame = self.bystander.next_delivered()
        assert frame.body.decode() == name, "the bystander gets what it sent, in order"
        self.bystander.ask("ACK", {"id": frame.headers["ack"]})
        if self.steps % LOGIN_EVERY == 0:
            Stomp(self.broker.stomp, "1.2", login="ann", passcode=USERS["ann"]).close()
        assert not (found := traceback_of(self.broker)), found

    @invariant()
    def counts_add_up(self) -> None:
        if self.steps % STATUS_EVERY == 0:
            self._settles(self._miscounted)

    def _welcome(self) -> Stomp:
        made = Stomp(self.broker.stomp, "1.2", login="bob", passcode=USERS["bob"])
        made.ask("SUBSCRIBE", {"id": "b", "destination": "/queue/bystander", "ack": "client-individual"})
        return made

    def _settles(self, trouble: Callable[[], str]) -> None:
        """Repeat a check, because the broker may notice an abrupt end of a connection later."""
        deadline = time.monotonic() + SETTLING_SECONDS
        while text := trouble():
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def _miscounted(self) -> str:
        status = self.broker.status()
        assert status is not None, "it answers"
        for figures in status["queues"]:
            negative = [name for name, value in figures.items() if name != "name" and value < 0]
            if negative or figures["unacknowledged"] > figures["messages"]:
                return f"impossible: {figures}"
            low, high = self.books.bounds(figures["name"])
            if figures["name"] in QUEUES and not low <= figures["messages"] <= high:
                return f"{figures} should have {low} to {high} messages"
        for name in ("messages", "unacknowledged"):
            total = sum(each[name] for each in (*status["queues"], *status["subscriptions"]))
            if status["counts"][name] != total:
                return f"{status['counts'][name]} {name} in all, {total} in each"
        memory = {name: value for name, value in status["counts"].items() if name.startswith("memory_")}
        return f"impossible: {memory}" if any(value < 0 for value in memory.values()) else ""

    # ---- the end

    def teardown(self) -> None:
        failed = sys.exc_info()[1]
        try:
            if failed is None:
                self._close_books()
        except BaseException as error:
            failed = error
            raise
        finally:
            if isinstance(failed, Exception):
                # Printed at once: a failure may not be reproducible, and then hypothesis would not show it.
                print("\n".join(["Last commands:", *TRACE[-TRACE_MAX:]]))
                print("".join(traceback.format_exception(failed)), flush=True)
            self.broker.stop()
            shutil.rmtree(self.directory)

    def _close_books(self) -> None:
        for actor in self.actors:
            actor.close()
        self.bystander.close()
        OpenWireActor.roll_back_all(self.openwire, self.books)
        self._settles(self._somebody_there)
        self._settles(self._miscounted)
        self.books.close(self._drained())
        self._settles(self._somebody_there)
        left = [each for each in self._queues() if each["name"].removeprefix(DLQ) in QUEUES and each["messages"]]
        assert all(self.books.has_spare(each["name"]) for each in left), left
        assert self.broker.terminate() == 0, self.broker.log.read_text()[-4000:]
        assert not (found := traceback_of(self.broker)), found
        assert check(self.broker.data).problems == []

    def _queues(self) -> list[dict[str, Any]]:
        return list(wait_until(self.broker.status, "status is answered")["queues"])

    def _somebody_there(self) -> str:
        queues = [each for each in self._queues() if each["consumers"] or each["unacknowledged"]]
        return f"nobody is there, but {queues}" if queues else ""

    def _count(self, name: str) -> int:
        return sum(each["messages"] for each in self._queues() if each["name"] == name)

    def _drained(self) -> list[tuple[str, str]]:
        found = []
        for figures in self._queues():
            name = figures["name"]
            if name.removeprefix(DLQ) not in QUEUES:
                continue
            reader = Stomp(self.broker.stomp, "1.2")
            reader.ask("SUBSCRIBE", {"id": "d", "destination": f"/queue/{name}", "ack": "client-individual"})
            deadline = time.monotonic() + SETTLING_SECONDS
            while left := self._count(name):  # expired messages are counted until they are removed
                assert time.monotonic() < deadline, f"{left} messages of {name} are counted, but not delivered"
                reader.ask("SEND", {"destination": "/queue/bystander"})
                while reader.delivered:
                    frame = reader.next_delivered()
                    found.append((body_of(frame.body), name))
                    reader.ask("ACK", {"id": frame.headers["ack"]})
            reader.ask("UNSUBSCRIBE", {"id": "d"})
            reader.close()
        return found


def run(seed: int, cases: int, steps: int = 60) -> Counter[str]:
    """Run the cases; return the counts of actions. AssertionError: the broker failed."""
    run_state_machine_as_test(
        hypothesis.seed(seed)(ValidFrames),
        settings=settings(
            max_examples=cases, stateful_step_count=steps, deadline=None, database=None, print_blob=True,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    return DONE
