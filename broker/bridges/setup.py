"""Make the bridges of the settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from functools import partial

from tandemmq.broker.bridges.bridge import Bridge, Plan
from tandemmq.broker.bridges.bridges import Bridges
from tandemmq.broker.bridges.link import Topic
from tandemmq.broker.bridges.remote import check
from tandemmq.config.bridges import BridgeSettings, BridgeTlsSettings
from tandemmq.store.records.message import Destination


def bridges_of(settings: Sequence[BridgeSettings], retains: Callable[[Destination, int], int]) -> Bridges:
    """Return the bridges. ``retains``: as ``Hooks.may_retain`` of sessions. Raises Unusable (broker.bridges.remote)."""
    check()
    return Bridges([Bridge(plan_of(each), retains) for each in settings])


def plan_of(settings: BridgeSettings) -> Plan:
    """Return the plan of one bridge."""
    return Plan(
        name=settings.name,
        addresses=tuple((address.host, address.port, is_tls) for address, is_tls in settings.told_addresses),
        client_id=settings.told_client_id,
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
    """Return the password, without the line end of its file."""
    if file is None:
        return password
    with open(file, encoding="utf-8") as found:
        return found.read().rstrip("\r\n")


def _context(tls: BridgeTlsSettings) -> ssl.SSLContext:
    """Return a context that requires a certificate with the host name of the other broker."""
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        file = tls.key_password_file
        context.load_cert_chain(tls.certificate, tls.key, None if file is None else lambda: _password(None, file) or "")
    return context
