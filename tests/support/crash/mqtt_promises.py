"""The promises of a broker to its MQTT clients, by its answers, and what must hold because of them.

A moment is a number that increases with each packet; 0: it did not happen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tandemmq.broker.mqtt.session_expiry import GRACE_SECONDS
from tandemmq.broker.protocols.mqtt.topics import matches, share_of
from tests.support.ci.verdicts import verdict

# Nothing is demanded of a timer so close to the time at which it is due.
UNSURE_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Published:
    """``confirmed_at``: moment of PUBACK or PUBREC. ``may_repeat``: the session in which it was sent was lost
    before."""

    payload: str
    topic: str
    qos: int
    is_retained: bool
    number: int
    sent_at: int = 0
    confirmed_at: int = 0
    may_repeat: bool = False


@dataclass(slots=True, eq=False)
class Subscribed:
    """``qos``: the lowest requested. ``leaving_at``: moment of UNSUBSCRIBE; ``left_at``: of UNSUBACK."""

    filter: str
    qos: int
    asked_at: int
    asked: int = 0  # number of SUBSCRIBEs
    granted_at: int = 0
    leaving_at: int = 0
    left_at: int = 0
    has_ended: bool = False  # with its session

    @property
    def pattern(self) -> str:
        share = share_of(self.filter)
        return self.filter if share is None else share[1]

    def covers(self, message: Published) -> bool:
        return matches(self.pattern, message.topic)

    def may_bring(self, message: Published) -> bool:
        is_late = message.confirmed_at and message.confirmed_at < self.asked_at
        return self.covers(message) and not is_late and not (self.left_at and self.left_at < message.sent_at)

    def must_bring(self, message: Published) -> bool:
        is_sure = 0 < self.granted_at < message.sent_at and not self.leaving_at and not self.has_ended
        return self.covers(message) and message.confirmed_at > 0 and message.qos > 0 and self.qos > 0 and is_sure


@dataclass(slots=True)
class Promises:
    """Promises to all clients. ``got``: messages that each received by subscriptions; ``got_first``: their order,
    without repetitions; ``got_retained``: retained messages at the start of a subscription."""

    moment: int = 0
    published: dict[str, Published] = field(default_factory=dict)
    retained: dict[str, list[Published]] = field(default_factory=dict)
    subscribed: dict[str, list[Subscribed]] = field(default_factory=dict)
    got: dict[str, Counter[str]] = field(default_factory=dict)
    got_first: dict[str, list[str]] = field(default_factory=dict)
    got_retained: dict[str, Counter[str]] = field(default_factory=dict)

    def next_moment(self) -> int:
        self.moment += 1
        return self.moment

    def join(self, client: str) -> None:
        self.subscribed[client], self.got[client], self.got_first[client] = [], Counter(), []
        self.got_retained[client] = Counter()

    def publish(self, client: str, topic: str, qos: int, *, is_retained: bool, is_empty: bool) -> Published:
        number = len(self.published) + 1
        payload = "" if is_empty else f"{client}-{number}"
        made = Published(payload, topic, qos, is_retained, number)
        self.published[payload or f"{client}-{number}"] = made
        if is_retained:
            self.retained.setdefault(topic, []).append(made)
        return made

    @verdict
    def came(self, client: str, payload: str, *, is_retained: bool) -> None:
        """Record a message that a client's application received."""
        if not payload:
            return
        if is_retained:
            self.got_retained[client][payload] += 1
            return
        message = self.published.get(payload)
        if message is not None:
            is_wanted = any(each.may_bring(message) for each in self.subscribed[client] if not each.has_ended)
            assert is_wanted, f"{client} got {payload}, for which it has no subscription"
        if not self.got[client][payload]:
            self.got_first[client].append(payload)
        self.got[client][payload] += 1

    def retained_now(self, topic: str) -> set[str]:
        """Return the payloads that may be retained: the last confirmed one, or one sent later. "": none."""
        history = self.retained.get(topic, [])
        confirmed = [number for number, each in enumerate(history) if each.confirmed_at]
        if not confirmed:
            return {"", *(each.payload for each in history if each.sent_at)}
        return {each.payload for each in history[confirmed[-1] :] if each.sent_at}

    # ---- the final check

    @verdict
    def hold(self) -> None:
        """Raise AssertionError if a promise was broken. Call it after the clients have received everything."""
        for client in self.subscribed:
            for message in self.published.values():
                if message.payload:
                    self._hold_message(client, message)
            self._hold_order(client)
            for each in self.subscribed[client]:
                self._hold_retained(client, each)

    def _hold_message(self, client: str, message: Published) -> None:
        times = self.got[client][message.payload]
        subscriptions = [each for each in self.subscribed[client] if each.covers(message)]
        assert times or not any(each.must_bring(message) for each in subscriptions), f"{client} lacks {message}"
        is_once = message.qos == 2 and not message.may_repeat and all(each.qos == 2 for each in subscriptions)
        assert times <= 1 or not is_once, f"{client} has {message} {times} times"
        times, asked = self.got_retained[client][message.payload], sum(each.asked for each in subscriptions)
        assert times <= asked or not is_once, (
            f"{client} has {message} {times} times as retained, and asked {asked} times"
        )

    def _hold_order(self, client: str) -> None:
        last: dict[str, Published] = {}
        for payload in self.got_first[client]:
            message = self.published.get(payload)
            if message is None or message.qos != 2 or message.may_repeat:
                continue
            if not all(each.qos == 2 for each in self.subscribed[client] if each.covers(message)):
                continue
            before = last.get(message.topic)
            assert before is None or before.number < message.number, f"{client} got {message} behind {before}"
            last[message.topic] = message

    def _hold_retained(self, client: str, subscribed: Subscribed) -> None:
        if not subscribed.granted_at or subscribed.leaving_at or subscribed.has_ended:
            return
        for topic, history in self.retained.items():
            if not matches(subscribed.filter, topic):
                continue
            before = [n for n, each in enumerate(history) if 0 < each.confirmed_at < subscribed.asked_at]
            if not before or not history[before[-1]].payload:
                continue
            wanted = {each.payload for each in history[before[-1] :]}
            found = wanted & {*self.got_retained[client], *self.got[client]}
            assert found or "" in wanted, f"{client} lacks what was retained for {topic}: one of {wanted}"


class Wills:
    """The wills of one client. Each of its connections has a will with a delay, and its session lasts longer than the
    delay."""

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.must: list[frozenset[str]] = []  # at least one of each must be published
        self.must_not: set[str] = set()
        self.count = 0
        self._stored: list[str] = []  # may be in the session's record
        self._is_sure = False  # CONNACK came for the first of them
        self._how = ""
        self._ended_at = 0.0
        self._crashed_after: float | None = None  # seconds from the end of the connection
        self._term_began = 0.0

    def connecting(self, now: float) -> str:
        """The will of the next CONNECT."""
        if self._is_due(now):
            self.must.append(frozenset(self._stored))
            self._stored, self._is_sure = [], False
        self.count += 1
        self._stored.append(f"will-{self.count}")
        return self._stored[-1]

    def connected(self, now: float) -> None:
        """Record CONNACK: the client has its session."""
        *former, latest = self._stored
        if len(former) == 1 and self._is_undue(now):
            self.must_not.update(former)
        self._stored, self._is_sure = [latest], True
        self._how = ""

    def ended(self, how: str, now: float) -> None:
        """``how``: cut, left, left with will, taken over."""
        self._how, self._ended_at, self._crashed_after = how, now, None

    def crashed(self, now: float) -> None:
        """Record the kill of the broker."""
        if not self._how:
            self._how, self._ended_at = "crash", now
        if self._crashed_after is None:
            self._crashed_after = now - self._ended_at

    def began(self, now: float) -> None:
        """Record that another broker serves."""
        self._term_began = now

    def _is_due(self, now: float) -> bool:
        """Return whether one of the stored wills must have been published by now."""
        if not self._is_sure or self._how in ("", "left", "taken over"):
            return False
        if self._crashed_after is None:
            return now - self._ended_at > self.delay + UNSURE_SECONDS
        return now - self._term_began > max(self.delay, GRACE_SECONDS) + UNSURE_SECONDS

    def _is_undue(self, now: float) -> bool:
        """Return whether none of them can have been published."""
        crashed_after, delay = self._crashed_after, self.delay - UNSURE_SECONDS
        if self._how == "left":
            return crashed_after is None  # otherwise the client may not have received it
        if self._how == "left with will" or (self._how == "cut" and crashed_after is None):
            return now - self._ended_at < delay
        if crashed_after is not None and now - self._ended_at > max(self.delay, GRACE_SECONDS) - UNSURE_SECONDS:
            return False
        return self._how != "cut" or crashed_after is None or crashed_after < delay

    @verdict
    def hold(self, now: float, published: Counter[str]) -> None:
        """Raise AssertionError if a due will is missing, or another was published. The client must be away."""
        if self._is_due(now):
            self.must.append(frozenset(self._stored))
        for each in self.must:
            assert any(published[will] for will in each), f"none of {sorted(each)} was published"
        for will, times in published.items():
            assert times <= 1 or not will.startswith("will-"), f"{will} was published {times} times"
            assert will not in self.must_not, f"{will} was published, though its client came back or left"
