"""Start brokers for Java tests (java/shadow), each in its own process.

``python -m tandemmq.bench.outside.brokers PORT KIND DIRECTORY [COMMAND…]`` listens on that port of 127.0.0.1. The first
line of a connection describes a broker; the answer is ``yes`` or ``no REASON``. The line ``stop`` stops the broker
cleanly; the end of the connection kills it. A broker of KIND ``tandemmq`` is forked from this process, with all modules
imported. For other kinds, COMMAND is run with the description as its last argument, and must answer in the same way.
The settings file is made from the configuration of ActiveMQ's broker in the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tandemmq.broker.run import run_broker
from tandemmq.broker.security import users
from tandemmq.broker.security.users import User
from tandemmq.config.destinations import DestinationSettings
from tandemmq.config.errors import SettingsError
from tandemmq.config.kahadb_property import snake_case
from tandemmq.config.load import Flags, load

Facts = Mapping[str, Any]

# Settings of ActiveMQ without an effect for clients, for example of its internals or its log.
_INNER: Final = frozenset(
    {
        "cursorMemoryHighWaterMark", "enableAudit", "lazyDispatch", "maxAuditDepth", "maxBrowsePageSize",
        "maxExpirePageSize",
        "messageGroupMapFactory", "maxPageSize", "maxProducersToAudit", "maxQueueAuditDepth", "minimumMessageSize",
        "optimizeMessageStoreInFlightLimit", "optimizedDispatch", "doOptimzeMessageStorage", "reduceMemoryFootprint",
        "pendingDurableSubscriberPolicy", "pendingQueuePolicy", "pendingSubscriberPolicy", "storeUsageHighWaterMark",
        "useCache", "usePrefetchExtension", "useTopicSubscriptionInflightStats",
    }
)  # fmt: skip
_STRATEGIES: Final = {
    "IndividualDeadLetterStrategy": "individual",
    "SharedDeadLetterStrategy": "shared",
    "DiscardingDeadLetterStrategy": "discarding",
    "AbortSlowConsumerStrategy": "abort_slow_consumer",
    "AbortSlowAckConsumerStrategy": "abort_slow_ack_consumer",
    "ConstantPendingMessageLimitStrategy": None,
}
# Options of sockets and logs.
_SOCKET: Final = re.compile(r"([?&])(?:transport\.soLinger|transport\.closeAsync|trace|transport\.trace)=[^&]*&?")
_MEMORY_MIN: Final = 16 << 20
_STORE_MIN: Final = 64 << 20  # a test with a smaller limit intends to reach it


class NoSetting(Exception):
    """TandemMQ has no setting for a requirement of a test."""


def write_settings(facts: Facts, directory: Path) -> Path:
    """Write the settings file, and the files that it names, into ``directory``. Raises NoSetting."""
    if facts["destinations"]:
        raise NoSetting("destinations that exist from the start")
    lines = ["[broker]", f"name = {_text(facts['name'])}", f"max_scheduler_repeat_allowed = {facts['repeats']}"]
    lines.append(f"populate_jmsx_user_id = {_text(facts['userIds'])}")
    if "memory" in facts:
        if facts["memory"] < _MEMORY_MIN:
            raise NoSetting(f"a broker of {facts['memory']} bytes of memory")
        lines.append(f"memory_limit = {facts['memory']}")
    if 0 < facts.get("store", 0) < _STORE_MIN:
        raise NoSetting(f"a store of {facts['store']} bytes")
    lines += ["[store]", f"directory = {_text(str(directory / 'data'))}"]
    for uri in facts["connectors"]:
        if "ssl:" in uri:
            raise NoSetting("a Java key store")
        meant = _SOCKET.sub(r"\1", uri).rstrip("?&")
        lines += ["[[connectors]]", f"uri = {_text(meant)}"]
    lines += _security(facts, directory)
    for entry in _destinations(facts):
        lines += _table("destinations", entry)
    file = directory / "tandemmq.toml"
    file.write_text("\n".join([*lines, ""]))
    return file


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _table(name: str, entry: Facts) -> Iterator[str]:
    yield f"[[{name}]]"
    inner = {key: value for key, value in entry.items() if isinstance(value, dict)}
    yield from (f"{key} = {_text(value)}" for key, value in entry.items() if key not in inner)
    for key, values in inner.items():
        yield f"[{name}.{key}]"
        yield from (f"{of} = {_text(value)}" for of, value in values.items())


def _security(facts: Facts, directory: Path) -> Iterator[str]:
    if "users" not in facts and "rights" not in facts:
        return
    yield "[security]"
    yield "failed_login_delay = 0"
    if "users" in facts:
        users = directory / "users"
        users.write_text("".join(f"{_user(text)}\n" for text in facts["users"]))
        users.chmod(0o600)
        yield f"users_file = {_text(str(users))}"
        yield f"allow_anonymous = {_text(str('anonymous' in facts).lower())}"
    if anonymous := facts.get("anonymous"):
        yield f"anonymous_user = {_text(anonymous['user'])}"
        yield f"anonymous_group = {_text(anonymous['group'])}"
    for text in facts.get("rights", ()):
        kind, pattern = _name(text["destination"])
        rights = {verb: text[verb] for verb in ("read", "write", "admin")}
        yield from _table("security.authorization", {kind: pattern, **rights})


def _user(value: Facts) -> User:
    return User(value["name"], _hash(value["password"]), frozenset(value["groups"]), None)


_hashes: dict[str, users.Hash] = {}


def _hash(password: str) -> users.Hash:
    """Return the hash. It is made only once for all brokers that are forked from here, because it takes 40 ms."""
    return _hashes.get(password) or _hashes.setdefault(password, users.make(password))


for _password in ("manager", "password"):
    _hash(_password)


def _destinations(facts: Facts) -> Iterator[dict[str, Any]]:
    seen = set()
    common = dict(_common(facts))
    last: dict[str, Any] = {}
    for text in facts["policies"]:
        entry = {**common, **dict(_entry(text))}
        if "destination" in text:
            for name in text["destination"].split(","):
                kind, pattern = _name(name)
                seen.add((kind, pattern))
                yield {kind: pattern, **entry}
        else:
            last = entry
    rest = last or {**common, **dict(_entry({}))}
    for kind in ("queue", "topic"):
        if (kind, ">") not in seen:
            yield {kind: ">", **rest}
    yield {"temp_queue": True, **rest}
    yield {"temp_topic": True, **rest}


def _common(facts: Facts) -> Iterator[tuple[str, object]]:
    """Yield the settings for the whole broker."""
    stamps = facts.get("timeStamping") or {"futureOnly": True}
    if not stamps["futureOnly"]:
        raise NoSetting("a broker that replaces the time of each message")
    for key in ("ttlCeiling", "zeroExpirationOverride"):
        if stamps.get(key):
            yield _snake(key), stamps[key]
    if facts.get("failsWithoutSpace"):
        yield "send_fail_if_no_space", True
    if facts.get("failsWithoutSpaceAfter"):
        yield "send_fail_if_no_space_after_timeout", facts["failsWithoutSpaceAfter"]


def _entry(raw: Facts) -> Iterator[tuple[str, object]]:
    if "deadLetterStrategy" not in raw:
        yield "dead_letter_strategy", {"type": "shared"}  # ActiveMQ's default
    for key, value in raw.items():
        if key == "destination" or key in _INNER:
            continue
        snake = _snake(key)
        if snake not in DestinationSettings.model_fields:
            raise NoSetting(f"{key} of a policyEntry")
        yield snake, _strategy(key, value) if isinstance(value, dict) else value


def _strategy(key: str, raw: Facts) -> dict[str, object]:
    name = raw["class"].rpartition(".")[2]
    if name not in _STRATEGIES:
        raise NoSetting(f"{name} as {key}")
    found: dict[str, object] = {} if _STRATEGIES[name] is None else {"type": _STRATEGIES[name]}
    for inner, value in raw.items():
        if inner == "deadLetterQueue":
            found["dead_letter_queue"] = _name(value)[1]
        elif inner not in ("class", "checkPeriod", "name", "enableAudit", "maxAuditDepth", "maxProducersToAudit"):
            found[_snake(inner)] = value
    return found


def _snake(key: str) -> str:
    return snake_case(key.replace("Timout", "Timeout"))  # ActiveMQ has both spellings


def _name(qualified: str) -> tuple[str, str]:
    kind, _, pattern = qualified.partition("://")
    if kind in ("temp-queue", "temp-topic"):
        raise NoSetting("a policy for temporary destinations by their names")
    return kind, pattern


def main() -> None:
    port, kind, directory, *command = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        print("listening", flush=True)
        while True:
            line, _ = listener.accept()
            if os.fork():
                line.close()
                continue
            listener.close()
            try:
                _serve(line, kind, Path(directory), command)
            except BaseException:
                traceback.print_exc()
            os._exit(1)


def _serve(line: socket.socket, kind: str, directory: Path, command: list[str]) -> None:
    asked = line.makefile("r")
    facts = json.loads(asked.readline())
    own = Path(facts["directory"])
    if facts["deletes"] or not facts["persistent"]:
        shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True, exist_ok=True)
    if kind != "tandemmq":
        description = own / "description.json"
        description.write_text(json.dumps(facts))
        os.dup2(line.fileno(), 0)
        os.dup2(line.fileno(), 1)
        os.execvp(command[0], [*command, str(description)])
    try:
        loaded = load(str(write_settings(facts, own)), None, (), Flags(None, None, None, None, "off"))
    except (NoSetting, SettingsError) as error:
        reason = str(error) if isinstance(error, SettingsError) else f"no setting for {error}"
        line.sendall(f"no {' '.join(reason.split())}\n".encode())
        return
    threading.Thread(target=_end_as_asked, args=(asked,), daemon=True).start()
    line.sendall(b"yes\n")
    run_broker(loaded)
    os._exit(0)


def _end_as_asked(asked: object) -> None:
    with contextlib.suppress(OSError):
        if asked.readline() == "stop\n":  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)
            return
    os._exit(0)


if __name__ == "__main__":
    main()
