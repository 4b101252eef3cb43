"""``tandemmq doctor replication``: check the settings of a node of a replicated set.

The checks do not join the set: they bind the address of the node for a moment, query ZooKeeper in a separate session,
and open connections to the members found there without sending anything.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click

from tandemmq.broker.replication.directory import Entry, ZooKeeperPlace, decode
from tandemmq.broker.replication.tcp import split_address
from tandemmq.broker.settings.replication import security_token, zk_password
from tandemmq.cli.config import WrongSettings, load_settings
from tandemmq.cli.doctor.report import Check, Finding, Report, Verdict, as_lines, fail, ok, warn
from tandemmq.cli.failures import EXIT_FAILED
from tandemmq.cli.output import json_option
from tandemmq.config.errors import SettingsError
from tandemmq.config.replication import ReplicationSettings
from tandemmq.locker.contract import BootClock, LockRefused, LockSettingsError, LockUnavailable, UnknownLocker
from tandemmq.locker.zookeeper.session import ZooKeeperSession

CONNECT_SECONDS_MAX: Final = 3.0
ZOOKEEPER_SECONDS_MAX: Final = 5.0
NONCE_BYTES: Final = 16
#: Granted and requested timeouts are compared in milliseconds, as ZooKeeper counts.
SAME_SECONDS: Final = 0.001


@click.command()
@click.option("--config", metavar="FILE", envvar="TANDEMMQ_CONFIG", help="Settings file of the node (TOML).")
@click.option("--set", "overrides", metavar="SECTION.KEY=VALUE", multiple=True, help="Any setting; repeatable.")
@json_option
def replication(config: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the settings of a node of a replicated set, on its host: token, bind, hostname, ZooKeeper, members.

    Run it before the node starts; beside a running one it only reports that the address is in use. It changes nothing
    and joins no set. Exits with 1 if a check fails; a warning is not a failure.
    """
    settings = load_settings(config, overrides)
    options = settings.replication
    if options is None:
        raise click.UsageError("these settings have no table [replication]: there is no set")
    try:
        checks = list(examine(options, settings.broker.name))
    except SettingsError as error:
        raise WrongSettings(str(error)) from error
    node, of = options.node_name, settings.broker.name
    report = Report(settings.store.directory, "", checks)
    if as_json:
        shown = report.as_json()
        click.echo(json.dumps({"node": node, "set": of, "verdict": shown["verdict"], "checks": shown["checks"]}))
    else:
        click.echo("\n".join([f"{node}, of the set {of}", "", *as_lines(checks)]))
    sys.exit(EXIT_FAILED if report.verdict is Verdict.FAIL else 0)


def examine(options: ReplicationSettings, broker: str) -> Iterator[Check]:
    """Run all checks. ``broker``: the name of the set. Raises SettingsError for a secret that cannot be read."""
    yield Check("security_token", _token(options))
    yield Check("replicas", _replicas(options))
    yield Check("sync", _sync(options))
    finding, listener = _bind(options)
    yield Check("bind", finding)
    try:
        yield Check("hostname", _hostname(options, listener))
    finally:
        if listener is not None:
            listener.close()
    finding, entries = _zookeeper(options, broker)
    yield Check("zk_address", finding)
    yield Check("members", _members(options, entries))
    yield Check("clocks", ok("not compared: clocks need not agree, only run at the same speed within 10 %"))


def _token(options: ReplicationSettings) -> Finding:
    if security_token(options):
        return ok("is set; whether it is the same on all nodes shows when they connect")
    return warn("is missing: any client that can connect to this node may join the set and read all messages")


def _replicas(options: ReplicationSettings) -> Finding:
    count = options.replicas
    survives = (count - 1) // 2
    if survives == 0:
        return warn(f"{count}: the set stops when one node is down")
    say = ok if count % 2 else warn
    more = "" if count % 2 else f", no more than {count - 1} would"
    return say(f"{count}: the set continues without {survives} of them{more}", survives=survives)


def _sync(options: ReplicationSettings) -> Finding:
    parts = options.sync_parts
    if parts.remote == "none":
        return warn(f"{options.sync}: confirmed messages may be on no other node, and are lost with the master")
    if parts.remote == "memory":
        return warn(f"{options.sync}: the last confirmed messages are lost when a quorum of nodes loses power at once")
    return ok(f"{options.sync}: confirmed messages are on the disks of a quorum, or about to be on the master's disk")


def _bind(options: ReplicationSettings) -> tuple[Finding, socket.socket | None]:
    """Check the bind address; also return the socket that listens there, for `_hostname`."""
    address = options.bind_address
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return warn(f"{address} is in use: by this node, if it runs; else choose another port"), None
        if error.errno == errno.EADDRNOTAVAIL:
            return fail(f"{address} is no address of this host"), None
        return fail(f"{address} cannot be bound: {error.strerror or error}"), None
    return ok(f"{address} can be bound"), listener


def _hostname(options: ReplicationSettings, listener: socket.socket | None) -> Finding:
    """Check that a connection to the advertised host name arrives at this node."""
    host = options.advertised_hostname
    port = options.bind_address.port if listener is None else listener.getsockname()[1]
    said = "" if options.hostname else ", the system's own name; set replication.hostname"
    try:
        addresses = sorted({str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except OSError as error:
        return fail(f"{host} cannot be resolved: {error.strerror or error}{said}")
    if port == 0:
        return ok(f"{host} is {', '.join(addresses)}; with port 0 nothing more can be tested")
    nonce = os.urandom(NONCE_BYTES)
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS_MAX) as dialed:
            if listener is None:
                return warn(f"{host}:{port} is answered, but not by this check: something else listens there")
            dialed.sendall(nonce)
            leads_here = _arrives(listener, nonce)
    except OSError as error:
        reason = error.strerror or str(error)
        return fail(
            f"{host}:{port} does not lead back here ({', '.join(addresses)}: {reason}): no node could follow{said}"
        )
    if not leads_here:
        return fail(f"{host}:{port} leads to another process ({', '.join(addresses)}){said}")
    if options.replicas > 1 and all(address.startswith("127.") or address == "::1" for address in addresses):
        return warn(f"{host} is {', '.join(addresses)}: nodes on other hosts would connect to themselves")
    return ok(f"{host}:{port} leads back here, tested from this host")


def _arrives(listener: socket.socket, nonce: bytes) -> bool:
    listener.settimeout(CONNECT_SECONDS_MAX)
    try:
        while True:
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(CONNECT_SECONDS_MAX)
                if accepted.recv(NONCE_BYTES, socket.MSG_WAITALL) == nonce:
                    return True
    except TimeoutError:
        return False


def _zookeeper(options: ReplicationSettings, broker: str) -> tuple[Finding, Sequence[Entry]]:
    """Check ZooKeeper; also return the members that have an entry there."""
    asked = options.zk_session_timeout / 1000
    place = ZooKeeperPlace(options.zk_address, options.zk_path, broker, asked, zk_password(options))
    where = f"the ZooKeeper node {place.nodes} at {place.hosts}"
    try:
        session = ZooKeeperSession(where, place.hosts, asked, place.digest, BootClock())
    except (UnknownLocker, LockSettingsError) as error:
        return fail(str(error)), ()
    try:
        session.connect(ZOOKEEPER_SECONDS_MAX)
        granted = session.timeout_seconds
        entries = _entries(session, place)
    except LockRefused as error:
        return fail(f"{error}: is zk_password the same on the other nodes?"), ()
    except LockUnavailable as error:
        return fail(str(error)), ()
    finally:
        session.close()
    if granted > asked + SAME_SECONDS:
        sentence = (
            f"it grants sessions of {granted:g} s, but zk_session_timeout is {asked:g} s: a dead node is detected "
            f"{granted - asked:g} s later. Set tickTime or minSessionTimeout in zoo.cfg"
        )
        return warn(sentence, granted_seconds=granted, asked_seconds=asked), entries
    return ok(f"it answers, and grants sessions of {granted:g} s", granted_seconds=granted), entries


def _entries(session: ZooKeeperSession, place: ZooKeeperPlace) -> list[Entry]:
    from kazoo.exceptions import NoNodeError

    found = []
    try:
        for name in session.call("get_children", place.nodes, seconds_max=ZOOKEEPER_SECONDS_MAX):
            content, _ = session.call("get", f"{place.nodes}/{name}", seconds_max=ZOOKEEPER_SECONDS_MAX)
            found.append(decode(content)[0])
    except NoNodeError:
        pass  # no member was ever here, or the last one has just left
    return [entry for entry in found if entry is not None]


def _members(options: ReplicationSettings, entries: Sequence[Entry]) -> Finding:
    """Check that this node can reach the other members."""
    if not entries:
        return ok("none has an entry in ZooKeeper yet")
    others = [each for each in entries if not _is_own(each, options)]
    namesakes = [each.address for each in others if each.node == options.node_name]
    if namesakes:
        return fail(f"another node is called {options.node_name}, too: at {', '.join(namesakes)}")
    away = [reason for each in others if (reason := _unreachable(each)) is not None]
    if away:
        return fail(f"cannot be reached from here: {'; '.join(away)}", unreachable=len(away))
    names = ", ".join(each.node for each in others) or "no other node"
    return ok(f"{len(entries)} of {options.replicas} have an entry; reached: {names}", entries=len(entries))


def _is_own(entry: Entry, options: ReplicationSettings) -> bool:
    """Return whether the entry is this node's. With port 0, another process of this host cannot be distinguished."""
    host, port = options.advertised_hostname, options.bind_address.port
    is_here = entry.address == f"{host}:{port}" if port else entry.address.startswith(f"{host}:")
    return entry.node == options.node_name and is_here


def _unreachable(entry: Entry) -> str | None:
    try:
        socket.create_connection(split_address(entry.address), CONNECT_SECONDS_MAX).close()
    except (OSError, ValueError) as error:
        return f"{entry.node} at {entry.address}: {getattr(error, 'strerror', None) or error}"
    return None
