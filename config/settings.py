"""Every setting there is: its name, its default, its bounds and what it means.

Keys are ActiveMQ's own names in snake_case. The models only say what is right; where values come from, and what is
said of wrong ones, stands in `config.load`; the tables [store], [locker], [replication], [security], [tls], [mqtt],
[websocket], [[bridges]], [[destinations]] and [[virtual_destinations]] in modules of their names; what becomes of
ActiveMQ's settings that are none of ours in `config.kahadb` and `config.policy_entries`. `docs/settings.md` is printed
from what stands below the fields.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr

from tandemmq.config import addresses
from tandemmq.config.addresses import Address, ConnectorOptions
from tandemmq.config.bridges import Bridges
from tandemmq.config.destinations import Destinations
from tandemmq.config.io_exception_handler import IOExceptionHandlerSettings
from tandemmq.config.locker import LockerSettings
from tandemmq.config.logging import LoggingSettings
from tandemmq.config.mqtt import MqttSettings
from tandemmq.config.replication import ReplicationSettings
from tandemmq.config.section import Listed, Path, Section
from tandemmq.config.security import SecuritySettings
from tandemmq.config.store import MIB, Pattern, StoreSettings
from tandemmq.config.tls import TlsSettings
from tandemmq.config.tracing import TracingSettings
from tandemmq.config.units import Bytes, Count, Milliseconds
from tandemmq.config.virtual_destinations import VirtualDestinations
from tandemmq.config.websocket import WebSocketSettings

# The name is a directory's name and a part of message ids.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _broker_name(name: str) -> str:
    if name and not _NAME.fullmatch(name):
        raise ValueError("a name of letters, digits, '.', '_' and '-', at most 100, that begins with a letter or digit")
    return name


def _failover_uri(uri: str) -> str:
    """As a client writes it: what the broker's own connectors are called does not matter."""
    if not re.fullmatch(r"(tcp|nio|ssl|auto)://[^\s,/?#]+:[0-9]{1,5}(\?[^\s,]*)?", uri):
        raise ValueError('a client\'s URI like "tcp://HOST:61616"')
    return uri


def _read_by(read: Callable[[str], object]) -> AfterValidator:
    """A text that this can read."""

    def validate(text: str) -> str:
        read(text)
        return text

    return AfterValidator(validate)


class BrokerSettings(Section):
    name: Annotated[str, AfterValidator(_broker_name)] = ""
    """Of this broker, unique in its pair; in a replicated set the same on all nodes, and to be said. Default:
    `<hostname>-<port of the first connector>`."""
    stomp_nack: Literal["dlq", "requeue"] = "dlq"
    """What a STOMP NACK does: dead letter at once, as ActiveMQ, or back to the queue, as RabbitMQ."""
    maximum_redeliveries: Count = 6
    """So often a message comes again before it is a dead letter; 0: never again."""
    max_scheduler_repeat_allowed: Count = 1000
    """So often a scheduled message may come after its first time (`AMQ_SCHEDULED_REPEAT`)."""
    stomp_strict_errors: bool = False
    """Every ERROR closes its connection. Without, it stays open after an unknown acknowledgement id, an unknown
    subscription, a refused send or a bad selector, as in ActiveMQ."""
    populate_jmsx_user_id: bool = False
    """`JMSXUserID` of each message is the name of the user who sent it. Without, messages have none: what a client says
    there is dropped in any case."""
    memory_limit: Bytes | None = Field(None, ge=16 * MIB)
    """All that clients have the broker hold in memory: messages that wait or are not acknowledged, transactions, frames
    on their way. See security.md. Default: 40 % of the memory of the machine, or of the control group if that has
    less."""
    user_connections_max: Annotated[Count, Field(ge=1)] | None = None
    """Connections of one user at once, all connectors together. Default: no limit of its own."""
    user_destinations_max: Annotated[Count, Field(ge=1)] | None = None
    """Queues and topics that one user made, temporary ones too, since this broker became master. Default: no limit of
    its own; in any case no user has made more than are left for all."""
    user_stored_bytes_max: Bytes | None = Field(None, ge=1)
    """Bytes of the persistent messages that one user sent and that the store still needs: a message beyond it is
    refused. Set it on all brokers of the store. Default: no limit of its own."""
    queue_prefetch: Count = Field(1_000, ge=1)
    """Unacknowledged messages a queue's consumer may have at most."""
    topic_prefetch: Count = Field(32_767, ge=1)
    """The same for a topic's consumer."""
    durable_topic_prefetch: Count = Field(100, ge=1)
    """The same for a durable subscriber."""
    failover_uris: Annotated[tuple[Annotated[str, AfterValidator(_failover_uri)], ...], Listed] = ()
    """Where OpenWire clients find the brokers of this pair, itself too: `tcp://HOST:PORT`. Those with a failover
    transport are told when they connect and at a handover; their own list may name one broker alone.
    Default: in a set, what its members say of themselves; else nothing."""


class ConnectorSettings(Section):
    uri: Annotated[str, _read_by(addresses.connector)]
    """Protocol, address and options: `stomp://HOST:PORT?option=value&…`. `off`: this one is left out."""
    advertised: Annotated[str, _read_by(addresses.advertised)] | None = None
    """`HOST:PORT` by which others reach it, behind a container's ports or a balancer: told to clients, to the other
    brokers and by `status`. Default: that of `uri`, with this host's name in place of an address of all interfaces."""

    @cached_property
    def _parts(self) -> addresses.Connector:
        return addresses.connector(self.uri)

    @property
    def scheme(self) -> str:
        return self._parts.scheme

    @property
    def protocol(self) -> str:
        """What is spoken there: one of `config.addresses`."""
        return self._parts.protocol

    @property
    def is_tls(self) -> bool:
        return self._parts.is_tls

    @property
    def address(self) -> Address:
        return self._parts.address

    @property
    def options(self) -> ConnectorOptions:
        return self._parts.options


class AdminSettings(Section):
    uri: Annotated[str, _read_by(addresses.admin)] = "http://127.0.0.1:8161"
    """Where `status`, health checks and metrics are served; `off`: nowhere. `https://HOST:PORT` encrypts by [tls], as
    connectors do."""
    advertised: Annotated[str, _read_by(addresses.advertised)] | None = None
    """`HOST:PORT` by which others reach it: told in the lock, for commands and consoles that go from one broker to the
    other. Default: as for connectors."""
    hosts: Annotated[tuple[str, ...], Listed] = ()
    """Names with dots by which it is asked, in `Host`; addresses, `localhost`, this machine's own name and names
    without a dot are known. Others are refused, but for health checks."""
    metrics_destinations: Annotated[tuple[Pattern, ...], Listed] = ()
    """Destinations that have metrics of their own, by patterns: `ORDERS.>`; `>` for all. See metrics.md. Without, a
    scrape has sums alone."""
    metrics_destinations_max: Count = 1_000
    """So many destinations have them at most; the others are counted."""
    connections_max: Annotated[Count, Field(ge=1, le=1_000)] = 64
    """Connections at once, beside 64 for health checks alone. One more takes the place of one without a login, of the
    address with the most of them."""
    request_timeout: Annotated[Milliseconds, Field(ge=100)] = 10_000
    """A client that has not sent the head of a request, or then its body, within this time is hung up on."""
    response_timeout: Annotated[Milliseconds, Field(ge=100)] = 30_000
    """A client that has not taken a response within this time is hung up on."""
    answer_size_max: Annotated[Bytes, Field(ge=64 * 1024, le=8 << 20)] = 4 << 20
    """Length of one answer. A longer list ends there and tells how to go on; of metrics of destinations, the others are
    counted."""

    viewers: Annotated[tuple[str, ...], Listed] = ()
    """Groups that may see in the API and the console what there is, but no message."""
    operators: Annotated[tuple[str, ...], Listed] = ()
    """Groups that may also read messages and change destinations, as far as their rights as clients go."""
    administrators: Annotated[tuple[str, ...], Listed] = ()
    """Groups that may everything there, as may users with admin rights on all queues and topics."""
    backup_directory: Path | None = None
    """Where backups go that are asked for by the API, each in a directory of its own. Default: it makes none."""

    @property
    def address(self) -> Address | None:
        """None: off."""
        return addresses.admin(self.uri)

    @property
    def is_tls(self) -> bool:
        return self.uri.startswith(f"{addresses.HTTPS}:")


class Settings(Section):
    """All settings of a broker. `config.load.load` is the way to one: it fills in the broker's name, too."""

    broker: BrokerSettings = Field(default_factory=BrokerSettings)  # type: ignore[arg-type]
    connectors: tuple[ConnectorSettings, ...] = (
        ConnectorSettings(uri="stomp://127.0.0.1:61613"),
        ConnectorSettings(uri="openwire://127.0.0.1:61616"),
    )
    store: StoreSettings = Field(default_factory=StoreSettings)  # type: ignore[arg-type]
    locker: LockerSettings = Field(default_factory=LockerSettings)  # type: ignore[arg-type]
    replication: ReplicationSettings | None = None
    admin: AdminSettings = Field(default_factory=AdminSettings)
    logging: LoggingSettings = LoggingSettings()  # type: ignore[call-arg]
    io_exception_handler: IOExceptionHandlerSettings = IOExceptionHandlerSettings()
    tracing: TracingSettings = TracingSettings()
    tls: TlsSettings = TlsSettings()  # type: ignore[call-arg]
    security: SecuritySettings = SecuritySettings()  # type: ignore[call-arg]
    mqtt: MqttSettings = MqttSettings()  # type: ignore[call-arg]
    websocket: WebSocketSettings = WebSocketSettings()  # type: ignore[call-arg]
    destinations: Destinations = ()
    virtual_destinations: VirtualDestinations = ()
    bridges: Bridges = ()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _notes: tuple[str, ...] = PrivateAttr(default=())

    def origin(self, key: str) -> str | None:
        """Where the value of this dotted key was read; None: it is the default."""
        return self._origins.get(key)

    @property
    def origins(self) -> Mapping[str, str]:
        """Where every value was read that is not a default, by dotted key."""
        return self._origins

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator should know of how the settings were read, a sentence each."""
        return self._notes

    def with_level(self, level: str) -> Self:
        """With another ``logging.level``, as the option of `run` says."""
        return self.model_copy(update={"logging": self.logging.model_copy(update={"level": level})})

    def with_origins(self, origins: dict[str, str], notes: Sequence[str] = ()) -> Self:
        copy: Any = self.model_copy()
        copy._origins = dict(origins)
        copy._notes = tuple(notes)
        return copy  # type: ignore[no-any-return]


def default_name(connectors: tuple[ConnectorSettings, ...]) -> str:
    """`<hostname>-<port of the first connector>`: two brokers of one host differ, and each keeps its name."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:90] or "tandemmq"
    return f"{host}-{connectors[0].address.port}" if connectors else host
