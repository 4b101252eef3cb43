"""A bridge to another MQTT broker: it connects, reconnects after a loss, and reports its state."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from tandemmq import log_events
from tandemmq.broker.bridges.bridges import Bridges
from tandemmq.broker.bridges.flow import Flow
from tandemmq.broker.bridges.link import Counts, Topic
from tandemmq.broker.bridges.remote import Connection, Login, Lost, check
from tandemmq.broker.core.clock import milliseconds
from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.engine.engine import Engine
from tandemmq.config.bridges import BridgeSettings, BridgeTlsSettings
from tandemmq.store.records.message import Destination

log = logging.getLogger(__name__)

#: Factor by which the pause between attempts grows with each failure, and its largest random part. So brokers that lost
#: their connections at the same time do not all reconnect at the same time.
_FACTOR: Final = 2
_JITTER: Final = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a bridge (config.bridges). ``addresses``: host, port, and whether TLS is used. ``tls`` and
    ``password`` are called at each connect, on a thread; they raise OSError or ValueError."""

    name: str
    addresses: tuple[tuple[str, int, bool], ...]
    client_id: str
    username: str | None
    password: Callable[[], str | None]
    tls: Callable[[], ssl.SSLContext]
    is_version_5: bool
    is_bridge: bool
    keep_alive_seconds: int
    window: int
    restart_seconds: float
    restart_seconds_max: float
    topics: tuple[Topic, ...]


@dataclass(slots=True)
class Bridge:
    """A bridge. ``run`` serves it in one term as master. The figures of ``status`` continue in later terms."""

    plan: Plan
    retains: Callable[[Destination, int], int]
    counts: Counts = field(default_factory=Counts)
    _flow: Flow | None = field(default=None, init=False)
    _address: str | None = field(default=None, init=False)
    _since: int = field(default=0, init=False)
    _connects: int = field(default=0, init=False)
    _last_error: str | None = field(default=None, init=False)
    _last_error_at: int = field(default=0, init=False)

    def status(self) -> dict[str, Any]:
        """Return the state of the bridge, for the status. Times are milliseconds since 1970."""
        is_connected = self._address is not None
        flow = self._flow
        return {
            "name": self.plan.name,
            "client_id": self.plan.client_id,
            "addresses": [f"{'mqtts' if tls else 'mqtt'}://{host}:{port}" for host, port, tls in self.plan.addresses],
            "connected": is_connected,
            "address": self._address,
            "connected_since": self._since if is_connected else None,
            "connects": self._connects,
            "received": self.counts.received,
            "sent": self.counts.sent,
            "refused": self.counts.refused,
            "dropped": self.counts.dropped,
            "circled": self.counts.circled,
            "waiting": 0 if flow is None else flow.waiting,
            "last_error": self._last_error,
            "last_error_at": self._last_error_at or None,
            "topics": [
                {
                    "local": each.local,
                    "remote": each.remote,
                    "direction": "both" if each.is_in and each.is_out else "in" if each.is_in else "out",
                    "qos": each.qos,
                }
                for each in self.plan.topics
            ],
        }

    async def run(self, engine: Engine, message_ids: str) -> None:
        """Run until cancelled. ``message_ids``: prefix of the message ids of this term."""
        for number in itertools.count(1):
            flow = self._flow = Flow(
                engine,
                self.plan.name,
                self.plan.client_id,
                self.plan.topics,
                f"{message_ids}-{number}",
                counts=self.counts,
                clock=milliseconds,
                window=self.plan.window,
                retains=self.retains,
            )
            try:
                await flow.begin()
                await self._serve(flow)
            except ClientError as error:
                self._failed("here", error.message)
            finally:
                self._flow = None
                flow.end()
            await asyncio.sleep(self.plan.restart_seconds)

    def end(self) -> None:
        """End the term: the bridge no longer calls its engine."""
        if self._flow is not None:
            self._flow.end()

    async def _serve(self, flow: Flow) -> None:
        """Connect, and reconnect after each loss, until the engine has closed the flow."""
        seconds = self.plan.restart_seconds
        while not flow.is_over.is_set():
            for host, port, is_tls in self.plan.addresses:
                before = self._connects
                await self._once(flow, host, port, is_tls)
                if self._connects != before:
                    seconds = self.plan.restart_seconds
                if flow.is_over.is_set():
                    return
            await _first(asyncio.sleep(seconds * (1 + random.random() * _JITTER)), flow.is_over.wait())
            seconds = min(seconds * _FACTOR, self.plan.restart_seconds_max)

    async def _once(self, flow: Flow, host: str, port: int, is_tls: bool) -> None:
        """Open one connection, and serve it until it ends."""
        address = f"{'mqtts' if is_tls else 'mqtt'}://{host}:{port}"
        try:
            connection = Connection(host, port, await self._login(is_tls), flow)
            try:
                await connection.open()
                await self._subscribe(flow, connection)
                self._address, self._since = address, milliseconds()
                self._connects += 1
                log.info(
                    "bridge %s: connected to %s%s",
                    self.plan.name, address, ", whose session is resumed" if connection.is_resumed else "",
                    extra=log_events.BRIDGE_CONNECTED,
                )  # fmt: skip
                await _first(connection.lost(), flow.is_over.wait())
                self._failed(address, "the connection ended")
            finally:
                flow.detach(connection)
                self._address = None
                await connection.close()
        except (Lost, OSError, ValueError) as error:
            self._failed(address, str(error))

    async def _login(self, is_tls: bool) -> Login:
        plan = self.plan
        return Login(
            plan.client_id,
            plan.username,
            await asyncio.to_thread(plan.password),
            await asyncio.to_thread(plan.tls) if is_tls else None,
            plan.is_version_5,
            plan.is_bridge,
            plan.keep_alive_seconds,
            plan.window,
        )

    async def _subscribe(self, flow: Flow, connection: Connection) -> None:
        """Subscribe at the other broker to the incoming topics, and unsubscribe from topics that are not in the
        settings any more. A subscription that the other broker has confirmed in this session is not repeated, because
        that broker would send the retained messages again."""
        wanted = {each.remote: each.qos for each in self.plan.topics if each.is_in}
        known = flow.begun.remote if connection.is_resumed else {}
        for name in known:
            if name not in wanted:
                await connection.unsubscribe_from(name)
        await connection.subscribe_all([(name, qos) for name, qos in wanted.items() if known.get(name) != qos])
        if flow.begun.remote != wanted:
            await flow.store(replace(flow.begun, remote=wanted))

    def _failed(self, where: str, why: str) -> None:
        """Log a failure, unless the previous one had the same reason and no connection succeeded since."""
        if why != self._last_error or self._since > self._last_error_at:
            log.warning("bridge %s: %s: %s", self.plan.name, where, why, extra=log_events.BRIDGE_FAILED)
        self._last_error, self._last_error_at = why, milliseconds()


async def _first(*awaited: Awaitable[Any]) -> None:
    """Wait until one of ``awaited`` is done, raise its error, if any, and cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


def bridges_of(settings: Sequence[BridgeSettings], retains: Callable[[Destination, int], int]) -> Bridges:
    """Return the bridges. ``retains``: see ``Hooks.may_retain``. Raises Unusable (broker.bridges.remote)."""
    check()
    return Bridges([Bridge(plan_of(each), retains) for each in settings])


def plan_of(settings: BridgeSettings) -> Plan:
    """Convert the settings of one bridge."""
    return Plan(
        name=settings.name,
        addresses=tuple((address.host, address.port, is_tls) for address, is_tls in settings.parsed_addresses),
        client_id=settings.used_client_id,
        username=settings.username,
        password=partial(_password, settings.password, settings.password_file),
        tls=partial(_context, settings.tls),
        is_version_5=settings.protocol_version == "5",
        is_bridge=settings.bridge_mode,
        keep_alive_seconds=settings.keep_alive // 1000,
        window=settings.max_inflight_messages,
        restart_seconds=settings.restart_timeout / 1000,
        restart_seconds_max=max(settings.restart_timeout, settings.restart_timeout_max) / 1000,
        topics=tuple(
            Topic(each.pattern, each.qos, each.local_prefix, each.remote_prefix, each.is_in, each.is_out)
            for each in settings.topics
        ),
    )


def _password(password: str | None, file: str | None) -> str | None:
    """Return the password, from the settings or from the file without its line end."""
    if file is None:
        return password
    with open(file, encoding="utf-8") as found:
        return found.read().rstrip("\r\n")


def _context(tls: BridgeTlsSettings) -> ssl.SSLContext:
    """Return a TLS context that requires a certificate for the host name of the other broker."""
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        file = tls.key_password_file
        context.load_cert_chain(tls.certificate, tls.key, None if file is None else lambda: _password(None, file) or "")
    return context
