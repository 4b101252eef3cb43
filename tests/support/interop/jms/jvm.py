"""ActiveMQ's JMS client in a separate JVM (java/Jms.java), as Python objects.

Every call waits for the client's answer; exceptions of the client are raised here as `JmsError`. A `Later` runs a
blocking call in a separate thread of the JVM.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

#: Debian's package activemq. This module loads nothing of the product: the clients of tests/support/ledger use it.
LIBRARIES: Final = Path("/usr/share/activemq/lib")
SOURCES = Path(__file__).parent / "java"
ANSWER_SECONDS_MAX = 60.0
#: Timeouts for messages that must come, and for messages that must not come.
COMES_MS = 10_000
QUIET_MS = 300

Json = dict[str, Any]


def class_path(classes: Path) -> str:
    return f"{classes}:{LIBRARIES}/*:{LIBRARIES}/optional/*"


class JmsError(Exception):
    """An exception of the client. `kind`: simple name of its class; `package`: package of the class; `code`: that of an
    XAException."""

    def __init__(self, error: Json) -> None:
        super().__init__(f"{error['class']}: {error['message']} {error['causes']}")
        self.package, _, self.kind = str(error["class"]).rpartition(".")
        self.text: str = error["message"]
        self.code: int | None = error.get("code")
        self.causes: list[str] = error["causes"]


class Later:
    """The answer of a call that blocks until another client acts."""

    def __init__(self, jvm: Jvm, number: int) -> None:
        self._jvm = jvm
        self._number = number

    def result(self) -> Any:
        return self._jvm.answer(self._number)


class Jvm:
    """One process. Not thread-safe, except that another thread may wait for a `Later`. ``path``: class path that
    replaces the installed client."""

    def __init__(self, classes: Path, path: str = "") -> None:
        path = path or class_path(classes)
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path, "Jms"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[Json]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def connect(self, url: str, **options: Any) -> JmsConnection:
        """Return a connection. Options: user, password, clientId, start=False, xa=True."""
        name = self.name("connection")
        facts = self.call("connect", url=url, **{"as": name}, **options)
        return JmsConnection(self, name, facts)

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    def call(self, verb: str, lane: str = "main", **request: Any) -> Any:
        return self.answer(self.begin(verb, lane, **request))

    def later(self, verb: str, **request: Any) -> Later:
        return Later(self, self.begin(verb, self.name("lane"), **request))

    def begin(self, verb: str, lane: str, **request: Any) -> int:
        number = next(self._numbers)
        self._answers[number] = queue.SimpleQueue()
        line = {key: value for key, value in request.items() if value is not None}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "lane": lane, "do": verb, **line}) + "\n")
        self._process.stdin.flush()
        return number

    def answer(self, number: int) -> Any:
        line = self._answers[number].get(timeout=ANSWER_SECONDS_MAX)
        del self._answers[number]
        if "error" in line:
            raise JmsError(line["error"])
        return line["answer"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            self._answers[line["id"]].put(line)


class Message:
    """A message as a JMS client sees it. `facts`: the output of java/Messages.java."""

    def __init__(self, jvm: Jvm, facts: Json) -> None:
        self._jvm = jvm
        self.facts = facts

    def __getitem__(self, key: str) -> Any:
        return self.facts.get(key)

    def __repr__(self) -> str:
        return f"Message({self.facts})"

    @property
    def body(self) -> Any:
        body = self.facts.get("body")
        return base64.b64decode(body) if self.facts["kind"] == "bytes" else body

    @property
    def properties(self) -> Json:
        found: Json = self.facts["properties"]
        return found

    def acknowledge(self) -> None:
        self._jvm.call("acknowledge", on=self.facts["name"])


class _Thing:
    def __init__(self, jvm: Jvm, name: str) -> None:
        self.jvm = jvm
        self.name = name

    def call(self, verb: str, **request: Any) -> Any:
        return self.jvm.call(verb, on=self.name, **request)

    def make(self, verb: str, **request: Any) -> str:
        name = self.jvm.name(verb)
        self.call(verb, **{"as": name}, **request)
        return name

    def close(self) -> None:
        self.call("close")


class JmsConnection(_Thing):
    def __init__(self, jvm: Jvm, name: str, facts: Json) -> None:
        super().__init__(jvm, name)
        self.connection_id: str = facts["connectionId"]
        self.client_id: str = facts["clientId"]
        self.broker_name: str = facts["broker"]

    def session(self, mode: str = "AUTO") -> JmsSession:
        """Return a session. ``mode``: AUTO, CLIENT, DUPS_OK, INDIVIDUAL, TRANSACTED or XA."""
        return JmsSession(self.jvm, self.make("session", mode=mode))

    def start(self) -> None:
        self.call("start")

    def stop(self) -> None:
        self.call("stop")

    def destroy(self, destination: str) -> None:
        self.call("destroy", what=destination)

    def exceptions(self, count: int = 1, timeout: int = COMES_MS) -> list[Json]:
        """Wait for ``count`` exceptions of its exception listener; return them."""
        found: list[Json] = self.call("exceptions", count=count, timeout=timeout)
        return found

    def destinations(self, names: Sequence[str] = (), gone: Sequence[str] = ()) -> list[str]:
        """Return the content of its DestinationSource, as soon as it contains all of `names` and none of `gone`."""
        found: list[str] = self.call("destinations", names=list(names), gone=list(gone), timeout=COMES_MS)
        return found

    def consumers_of(self, destination: str) -> Listener:
        """Return a listener of a ConsumerEventSource."""
        return Listener(self.jvm, self.make("consumers", of=destination))


class JmsSession(_Thing):
    def producer(self, to: str | None = None) -> Producer:
        return Producer(self, self.make("producer", to=to))

    def consumer(self, source: str, selector: str | None = None, no_local: bool = False) -> Consumer:
        made = self.make("consumer", **{"from": source}, selector=selector, noLocal=no_local)
        return Consumer(self.jvm, made)

    def durable(self, topic: str, name: str, selector: str | None = None, no_local: bool = False) -> Consumer:
        made = self.make("durable", **{"from": topic}, name=name, selector=selector, noLocal=no_local)
        return Consumer(self.jvm, made)

    def listener(self, source: str, throws: int = 0, selector: str | None = None) -> Listener:
        """Return a MessageListener that fails the first `throws` deliveries."""
        made = self.make("consumer", **{"from": source}, listens=True, throws=throws, selector=selector)
        return Listener(self.jvm, made)

    def send(self, to: str, *bodies: Any, **options: Any) -> list[str]:
        """Send through a separate producer; return the ids of the messages."""
        producer = self.producer(to)
        ids = producer.send(*bodies, **options)
        producer.close()
        return ids

    def browse(self, queue_name: str, selector: str | None = None, count: int | None = None) -> list[Message]:
        found = self.call("browse", **{"from": queue_name}, selector=selector, count=count)
        return [Message(self.jvm, facts) for facts in found]

    def unsubscribe(self, name: str) -> None:
        self.call("unsubscribe", name=name)

    def recover(self) -> None:
        self.call("recover")

    def commit(self) -> None:
        self.call("commit")

    def rollback(self) -> None:
        self.call("rollback")

    def temporary_queue(self) -> str:
        name: str = self.call("temporaryQueue")
        return name

    def temporary_topic(self) -> str:
        name: str = self.call("temporaryTopic")
        return name

    def delete(self, temporary: str) -> None:
        self.call("delete", what=temporary)

    def xa(self, verb: str, xid: str | None = None, **options: Any) -> Any:
        """Call the XAResource. ``verb``: start, join, end, suspend, resume, prepare, commit, commitOnePhase, rollback,
        forget, recover."""
        return self.call("xa", step=verb, xid=xid, **options)


class Producer(_Thing):
    def __init__(self, session: JmsSession, name: str) -> None:
        super().__init__(session.jvm, name)
        self._session = session.name

    def send(self, *bodies: Any, **options: Any) -> list[str]:
        """Send messages; return their ids. Options: kind, properties, priority, ttl, persistent, replyTo, correlation,
        type, to."""
        ids: list[str] = self.call("send", **self._request(bodies, options))
        return ids

    def send_later(self, *bodies: Any, **options: Any) -> Later:
        return self.jvm.later("send", on=self.name, **self._request(bodies, options))

    def _request(self, bodies: Sequence[Any], options: Mapping[str, Any]) -> Json:
        kind = options.get("kind", "text")
        encoded = [base64.b64encode(body).decode() if isinstance(body, bytes) else body for body in bodies]
        return {"session": self._session, "bodies": encoded, **options, "kind": kind}


class Consumer(_Thing):
    def receive(self, timeout: int = COMES_MS) -> Message:
        """Return the next message. Fails if none comes."""
        found = self.take(timeout)
        assert found is not None, f"nothing within {timeout} ms"
        return found

    def take(self, timeout: int = QUIET_MS) -> Message | None:
        """Return the next message; None if none comes. Timeout 0 is receiveNoWait."""
        facts = self.call("receive", timeout=timeout)
        return None if facts is None else Message(self.jvm, facts)

    def receive_later(self, timeout: int = COMES_MS) -> Later:
        return self.jvm.later("receive", on=self.name, timeout=timeout)

    def bodies(self, count: int) -> list[Any]:
        """Return the bodies of the next ``count`` messages, which must come."""
        return [self.receive().body for _ in range(count)]

    def rest(self) -> list[Any]:
        """Return the bodies of all messages, until no more come."""
        found = []
        while (message := self.take()) is not None:
            found.append(message.body)
        return found


class Listener(_Thing):
    def heard(self, count: int, timeout: int = COMES_MS) -> list[Json]:
        """Wait until it has received ``count`` events since its start; return all of them."""
        found: list[Json] = self.call("heard", count=count, timeout=timeout)
        return found
