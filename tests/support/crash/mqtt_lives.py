"""A store with MQTT sessions, over several terms. Each term ends by a failed write or sync.

Up to the first failure a life depends only on its seed, so a write or sync is identified by its number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.topics.shared import CLIENT_ID as SHARED
from tandemmq.broker.protocols.mqtt.packets import Connect, Filter, PacketType, Subscribe, Version
from tandemmq.broker.protocols.mqtt.properties import NONE
from tandemmq.broker.protocols.mqtt.session_records import queue_of
from tandemmq.index.errors import IndexTrouble
from tandemmq.journal.errors import JournalError
from tandemmq.store.operations import Owner
from tandemmq.store.standby import Standby
from tandemmq.store.tools.check import check
from tests.support.broker.mqtt_wire import MqttWire
from tests.support.ci.verdicts import verdict
from tests.support.crash.crash_images import Disk
from tests.support.crash.failing_disk import SYNCS, WRITES_AND_SYNCS, Failed, FailingDisk, Failure
from tests.support.crash.mqtt_clients import NEVER, Act, Device, Go, Leave, Say, Want
from tests.support.crash.mqtt_promises import Promises, Wills
from tests.support.crash.mqtt_term import BEGIN, SETTINGS, MqttTerm
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.protocols.mqtt.client_packets import ServerPacket, decode_all, encode
from tests.support.store.store_harness import Term

WILLS = "wills/#"
WILL_DELAY = 5
GUEST_EXPIRY = 5
STEPS_MAX = 3_000
# Records of a session that end when its client connects again: its absence, and its published will.
WRITTEN_WHILE_AWAY_MAX = 2
# Longer than any delay, grace or session here.
LONG_SECONDS = 60.0
# Time until the retained messages of a former term are read.
LOADING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Crash:
    """The ``call``-th write or sync of a term fails in this way. ``loses_power``: data that no sync covers may be
    lost."""

    call: int
    failure: Failure
    loses_power: bool


class World:
    """``directory`` must exist. ``live`` runs the life, and checks it."""

    def __init__(self, directory: str, seed: int) -> None:
        self.calls: list[int] = []  # number of each term
        self.failed: list[Failed | None] = []
        self.terms = 0
        self._scratch = directory
        self._stores = 0
        self._dice = dice = random.Random(seed)
        self._chance = random.Random(seed + 1)  # for choices after a failure
        self._now = BEGIN
        self._new_directory()
        self._disk = RecordingDisk(self._directory)
        self._broker = "a"
        self._neighbour: tuple[Standby, FailingDisk] | None = None
        self.promises = Promises()
        self._wills = Wills(WILL_DELAY)
        version = dice.choice((Version.V5, Version.V5, Version.V3_1_1))
        self._watcher = Device(self.promises, "panel", _panel(dice), receive_maximum=dice.randint(1, 3))
        self._devices = [
            self._watcher,
            Device(self.promises, "meter", _meter(dice), version=version),
            Device(self.promises, "lamp", _lamp(dice), wills=self._wills),
            Device(self.promises, "guest", _guest(dice), expiry=GUEST_EXPIRY),
            Device(self.promises, "worker", _worker(dice), receive_maximum=dice.randint(1, 3)),
        ]

    def _new_directory(self) -> None:
        self._stores += 1
        self._directory = f"{self._scratch}/{self._stores}"
        os.mkdir(self._directory)

    # ---- terms

    def live(self, crashes: Sequence[Crash]) -> None:
        """Run one term for each crash, and one that ends normally."""
        for crash in [*crashes, None]:
            if self._term(crash):
                break
        else:
            raise AssertionError("the last term ends normally")
        self._judge()

    def _term(self, crash: Crash | None) -> bool:
        """Run a term; return whether it reached its end."""
        standby, own = self._next_master()
        if crash is not None:
            own.fail_at, own.failure = crash.call, crash.failure
        term: MqttTerm | None = None
        has_ended = False
        try:
            term = MqttTerm(
                standby or Standby(self._directory, self._index, self._broker, SETTINGS, disk=own), self._now
            )
            self._wills.began(self._now)
            self._stand_by()
            has_ended = self._run_term(term)
            if has_ended:
                self._now = term.loop.time()
                term.close()
        except (OSError, JournalError, IndexTrouble):
            assert crash is not None, "no call fails"
            has_ended = False
        finally:
            self.calls.append(own.count)
            self.failed.append(own.failed)
            if term is not None and not has_ended:
                self._now = term.loop.time()
                self._died(term)
        assert term is None or not term.loop.errors, term.loop.errors
        if not has_ended:
            assert crash is not None, f"nothing fails, and yet: {term and term.lost!r}"
            self._after(crash, own.failed)
        elif self._neighbour is not None:
            self._neighbour[0].close()
        self._sound()
        return has_ended

    def _died(self, term: MqttTerm) -> None:
        for device in self._devices:
            device.broker_died(self._now, self._chance)
        if not term.loop.is_closed():
            term.crash()

    def _next_master(self) -> tuple[Standby | None, FailingDisk]:
        """Return the standby, if there is one, and its disk; otherwise a new broker is started."""
        neighbour, self._neighbour = self._neighbour, None
        if neighbour is None:
            return None, FailingDisk(self._disk, 0, counted=WRITES_AND_SYNCS)
        neighbour[1].count = 0
        return neighbour

    def _stand_by(self) -> None:
        """Start a standby, or none."""
        if self._dice.random() < 0.5:
            other, own = self._other, FailingDisk(self._disk, 0, counted=WRITES_AND_SYNCS)
            self._neighbour = Standby(self._directory, self._index, other, SETTINGS, disk=own), own

    @property
    def _other(self) -> str:
        return "b" if self._broker == "a" else "a"

    @property
    def _index(self) -> str:
        return f"{self._directory}/index"

    def _after(self, crash: Crash, failed: Failed | None) -> None:
        """Prepare the directory for the next broker."""
        is_failed_sync = failed is not None and failed.call in SYNCS and crash.failure is not Failure.KILLED
        if not crash.loses_power and not is_failed_sync:
            if self._neighbour is not None:
                self._broker = self._other
            return
        if self._neighbour is not None:
            self._neighbour[0].close()
            self._neighbour = None
        self._broker = self._chance.choice("ab")
        if crash.loses_power:
            left = Disk(self._chance)
            for event in self._disk.events:
                left.apply(event)
            image = left.image()
            self._new_directory()
            image.put(self._directory)
        # Without a power loss the kernel writes all data in the end.
        self._disk = RecordingDisk(self._directory)

    def _sound(self) -> None:
        report = check(self._directory)
        assert report.is_clean, report.problems

    # ---- within a term

    def _run_term(self, term: MqttTerm) -> bool:
        """Return whether all actions are done."""
        dice = self._dice
        self._look_at_retained(term)
        for _ in range(STEPS_MAX):
            if term.is_lost:
                return False
            if all(each.is_done for each in self._devices):
                break
            self._follow_now_and_then()
            now = term.loop.time()
            ready = [each for each in self._devices if each.is_there or each.back_at <= now]
            if not self._watcher.has(WILLS):
                ready = [each for each in ready if each is self._watcher]
            ready = [each for each in ready if not each.is_done]
            if not ready:
                waited = [each.back_at for each in self._devices if not each.is_there]
                term.wait(min(waited) - now)
                continue
            for device in dice.sample(ready, dice.randint(1, min(2, len(ready)))):
                device.step(term, dice)
            term.turn()
            if not term.is_lost:
                for device in self._devices:
                    device.hear()
        else:
            raise AssertionError("it never ends")
        term.wait(LONG_SECONDS)
        self._hear_all(term)
        self._look_at_retained(term)
        return not term.is_lost

    def _follow_now_and_then(self) -> None:
        if self._neighbour is not None and self._dice.random() < 0.05:
            self._neighbour[0].follow()

    def _hear_all(self, term: MqttTerm) -> None:
        """Process all packets of the clients until no more come."""
        while not term.is_lost:
            for device in self._devices:
                device.hear()
            busy = [each for each in self._devices if each.is_there and not each.is_done]
            if not busy:
                return
            for device in busy:
                device.step(term, self._dice)
            term.turn()

    @verdict
    def _look_at_retained(self, term: MqttTerm) -> None:
        """Check the retained messages as a client without a session receives them."""
        probe = MqttWire(term, term.mqtt)
        if not term.is_lost:
            probe.arrive(_CONNECT)
            probe.arrive(_SUBSCRIBE)
            term.wait(LOADING_SECONDS)
        if term.is_lost:
            return
        found = {each.topic: each.payload.decode() for each in _heard(probe)}
        for topic in self.promises.retained:
            allowed = self.promises.retained_now(topic)
            assert found.get(topic, "") in allowed, f"{topic} has {found.get(topic)}, and not one of {allowed}"
        probe.close()
        term.turn()

    # ---- the final check

    def _judge(self) -> None:
        """Check after the life that the promises hold, and that no unneeded record is left."""
        self.promises.hold()
        self._wills.hold(self._now, self.promises.got["panel"])
        term = Term(self._directory, "judge", SETTINGS)
        try:
            self._hold_rest(term.owners)
        finally:
            term.close()

    @verdict
    def _hold_rest(self, owners: Sequence[Owner]) -> None:
        """Check that messages are left only where they must be."""
        filters = {each.client_id: each.filters_at(self._now) for each in self._devices}
        records = {queue_of(name): 1 + len(each) for name, each in filters.items() if each is not None}
        kept = [topic for topic in self.promises.retained if self.promises.retained_now(topic) != {""}]
        expected = {MQTT_RETAINED: len(kept), **records}
        for owner in owners:
            what = f"{owner.destination}, {owner.client_id}, {owner.subscription_name}"
            if owner.subscription_name is not None and owner.client_id != SHARED:
                wanted = filters[owner.client_id or ""] or set()
                assert owner.subscription_name.partition(":")[2] in wanted, f"{what} is not needed"
            found, count = owner.count, expected.pop(owner.destination, 0)
            if owner.destination == queue_of("lamp") and found:
                found -= min(found - 1, WRITTEN_WHILE_AWAY_MAX)
            assert found == count, f"{what} has {found} messages, and not {count}"
        assert not any(expected.values()), expected


# ---- actions of the clients


def _panel(dice: random.Random) -> list[Act]:
    """A client that receives all wills, with a subscription that begins and ends."""
    acts: list[Act] = [Want("plant/b", 1), Want("state/+", dice.choice((1, 2))), Want("plant/a", 2)]
    dice.shuffle(acts)
    again: list[Act] = [
        Leave("plant/b"),
        Go("cut", dice.choice((0, 3))),
        Want("plant/b", dice.choice((1, 2))),
        Go(dice.choice(("taken over", "left"))),
        Want("state/+", 1),
        Go("cut"),
    ]
    return [Want(WILLS, 2), *acts, *again]


def _meter(dice: random.Random) -> list[Act]:
    """A client that publishes, also retained messages."""
    acts: list[Act] = []
    for _ in range(4):
        publications: list[Act] = [Say("plant/a", 2), Say("plant/a", 2), Say("plant/b", dice.choice((1, 2)))]
        publications.append(Say(f"state/{dice.choice('xy')}", dice.choice((1, 2)), True, dice.random() < 0.3))
        dice.shuffle(publications)
        acts += [*publications, Go(dice.choice(("cut", "taken over", "left")))]
    return [*acts[:-1], Say("plant/b", 0)]


def _lamp(dice: random.Random) -> list[Act]:
    """A client with a will that leaves in every way; in the end for ever."""
    acts: list[Act] = [
        Go("cut", WILL_DELAY - 2), Go("cut", WILL_DELAY + 3), Go("taken over"), Go("left", WILL_DELAY + 3),
        Go("left with will", WILL_DELAY + 3), Go("cut"),
    ]  # fmt: skip
    dice.shuffle(acts)
    return [*acts, Go("cut", NEVER)]


def _worker(dice: random.Random) -> list[Act]:
    """The only member of a shared subscription."""
    want, *goes = Want("$share/crew/plant/a", 2), Go("cut", 1.0), Go("taken over"), Go("left", 1.0)
    return [want, *dice.sample(goes, 2)]


def _guest(dice: random.Random) -> list[Act]:
    """A client whose session ends during its absence, or because it begins another."""
    acts: list[Act] = [
        Want("plant/+", dice.choice((1, 2))),
        Go(dice.choice(("cut", "left")), 1.0),
        Go(dice.choice(("cut", "left")), 4 * GUEST_EXPIRY),
        Want("plant/a", 2),
        Go("cut", is_clean=True),
        Want("plant/b", 1),
    ]
    return [*acts, Go(dice.choice(("cut", "left")), NEVER)] if dice.random() < 0.5 else acts


_CONNECT = encode(Connect(Version.V5, "probe", True, 0, None, None, None, NONE))
_SUBSCRIBE = encode(Subscribe(1, (Filter("state/#", 0, False, False, 0),), NONE))


def _heard(wire: MqttWire) -> list[ServerPacket]:
    return [each for each in decode_all(wire.session.take()) if each.type is PacketType.PUBLISH]
