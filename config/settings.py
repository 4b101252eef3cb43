"""All settings: name, default, bounds and meaning.

Keys are ActiveMQ's own names in snake_case. The models only define valid values; `config.load` has the sources of
values and the errors of wrong ones. The tables [store], [locker], [replication], [security], [tls], [mqtt],
[websocket], [[bridges]], [[destinations]] and [[virtual_destinations]] are in modules of their names. `config.kahadb`
and `config.policy_entries` have the treatment of ActiveMQ's settings that do not exist here. `docs/settings.md` is
generated from the texts below the fields.
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
from tandemmq.config.destinations import Destinations, VirtualDestinations
from tandemmq.config.locker import LockerSettings
from tandemmq.config.logging import LoggingSettings, TracingSettings
from tandemmq.config.mqtt import MqttSettings, WebSocketSettings
from tandemmq.config.replication import ReplicationSettings
from tandemmq.config.section import Bytes, Count, Listed, Milliseconds, Path, Section
from tandemmq.config.security import SecuritySettings, TlsSettings
from tandemmq.config.store import MIB, IOExceptionHandlerSettings, Pattern, StoreSettings

# The name is a directory's name and a part of message ids.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _broker_name(name: str) -> str:
    if name and not _NAME.fullmatch(name):
        raise ValueError("a name of letters, digits, '.', '_' and '-', at most 100, that begins with a letter or digit")
    return name


def _failover_uri(uri: str) -> str:
    """Check a URI as a client writes it: the names of the broker's own connectors do not matter."""
    if not re.fullmatch(r"(tcp|nio|ssl|auto|amqps?|amqpwss?)://[^\s,/?#]+:[0-9]{1,5}(\?[^\s,]*)?", uri):
        raise ValueError('a client\'s URI like "tcp://HOST:61616" or "amqp://HOST:5672"')
    return uri


def _read_by(read: Callable[[str], object]) -> AfterValidator:
    """Make a validator of a text that ``read`` accepts."""

    def validate(text: str) -> str:
        read(text)
        return text

    return AfterValidator(validate)


class BrokerSettings(Section):
    name: Annotated[str, AfterValidator(_broker_name)] = ""
    """Name of this broker, unique in its pair. In a replicated set all nodes have the same name, and it is required.
    Default: `<hostname>-<port of the first connector>`."""
    stomp_nack: Literal["dlq", "requeue"] = "dlq"
    """Effect of a STOMP NACK. `dlq`: the message becomes a dead letter at once, as in ActiveMQ. `requeue`: it returns
    to the queue, as in RabbitMQ."""
    maximum_redeliveries: Count = 6
    """Number of redeliveries before a message is moved to the dead letter queue; 0: none."""
    max_scheduler_repeat_allowed: Count = 1000
    """Highest number of repetitions of a scheduled message (`AMQ_SCHEDULED_REPEAT`)."""
    stomp_strict_errors: bool = False
    """Close the connection after each ERROR. False: it stays open after an unknown acknowledgement id, an unknown
    subscription, a refused send or a bad selector, as in ActiveMQ."""
    populate_jmsx_user_id: bool = False
    """Set `JMSXUserID` of each message to the user that sent it. False: messages have none. The value that a client
    sends is always dropped."""
    memory_limit: Bytes | None = Field(None, ge=16 * MIB)
    """Memory for all clients: messages that wait or are not acknowledged, transactions, frames in transit (memory.md).
    Default: 40 % of the memory of the machine, or of the control group if that has less."""
    user_connections_max: Annotated[Count, Field(ge=1)] | None = None
    """Maximum number of connections of one user, all connectors together. Default: no limit for one user."""
    user_destinations_max: Annotated[Count, Field(ge=1)] | None = None
    """Maximum number of queues and topics, temporary ones included, that one user can create while this broker is
    master. Default: no such limit. In any case a user can have at most as many as are still free for all."""
    user_stored_bytes_max: Bytes | None = Field(None, ge=1)
    """Maximum bytes of stored persistent messages of one user; further messages are refused. Set it on all brokers of
    the store. Default: no limit for one user."""
    queue_prefetch: Count = Field(1_000, ge=1)
    """Maximum number of unacknowledged messages of a queue's consumer."""
    topic_prefetch: Count = Field(32_767, ge=1)
    """Maximum number of unacknowledged messages of a topic's consumer."""
    durable_topic_prefetch: Count = Field(100, ge=1)
    """Maximum number of unacknowledged messages of a durable subscriber."""
    failover_uris: Annotated[tuple[Annotated[str, AfterValidator(_failover_uri)], ...], Listed] = ()
    """Addresses of all brokers of this pair for clients of OpenWire (`tcp://HOST:PORT`) and AMQP (`amqp://HOST:PORT`,
    `amqps`, `amqpws`, `amqpwss`). The broker sends them to clients at connect, to those of OpenWire with a failover
    transport also at a handover, so a client needs to know one address only. Default: in a set, the addresses of its
    members; else none."""


class ConnectorSettings(Section):
    uri: Annotated[str, _read_by(addresses.connector)]
    """Protocol, address and options: `stomp://HOST:PORT?option=value&…`. `off`: no connector."""
    advertised: Annotated[str, _read_by(addresses.advertised)] | None = None
    """`HOST:PORT` that is advertised to clients, to other brokers and in `status`, for ports behind a container or a
    load balancer. Default: that of `uri`; a wildcard address is advertised as the host name."""

    @cached_property
    def _parts(self) -> addresses.Connector:
        return addresses.connector(self.uri)

    @property
    def scheme(self) -> str:
        return self._parts.scheme

    @property
    def protocol(self) -> str:
        """Protocol spoken there: a constant of `config.addresses`."""
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
    """Address of the admin server: `status`, health checks, metrics, API, console. `off`: none. `https://HOST:PORT`
    encrypts with [tls]."""
    advertised: Annotated[str, _read_by(addresses.advertised)] | None = None
    """`HOST:PORT` that is advertised in the lock, so that commands and consoles find the other broker. Default: as for
    connectors."""
    hosts: Annotated[tuple[str, ...], Listed] = ()
    """Additional host names with dots that requests may contain in `Host`. Addresses, `localhost`, this machine's name
    and names without a dot are always allowed. Other names are refused, except for health checks."""
    metrics_destinations: Annotated[tuple[Pattern, ...], Listed] = ()
    """Patterns of destinations that have their own metrics: `ORDERS.>`; `>` for all (metrics.md). Default: a scrape has
    sums only."""
    metrics_destinations_max: Count = 1_000
    """Maximum number of destinations with their own metrics; the others are counted."""
    connections_max: Annotated[Count, Field(ge=1, le=1_000)] = 64
    """Maximum number of connections, besides 64 that are reserved for health checks. A further one replaces a
    connection without a login, of the address that has the most."""
    request_timeout: Annotated[Milliseconds, Field(ge=100)] = 10_000
    """Time for a client to send the head of a request, and then its body. After it, the connection is closed."""
    response_timeout: Annotated[Milliseconds, Field(ge=100)] = 30_000
    """Time for a client to read a response. After it, the connection is closed."""
    answer_size_max: Annotated[Bytes, Field(ge=64 * 1024, le=8 << 20)] = 4 << 20
    """Longest answer. A longer list is cut and states how to continue; destinations beyond it have no metrics of their
    own and are counted."""

    viewers: Annotated[tuple[str, ...], Listed] = ()
    """Groups that can see everything in the API and the console except messages."""
    operators: Annotated[tuple[str, ...], Listed] = ()
    """Groups that can also read messages and change destinations, within their rights as clients."""
    administrators: Annotated[tuple[str, ...], Listed] = ()
    """Groups that can do everything there. Users with admin rights on all queues and topics can, too."""
    backup_directory: Path | None = None
    """Directory of backups that are requested by the API, one subdirectory each. Default: the API makes no backups."""

    @property
    def address(self) -> Address | None:
        """Address of the admin server; None: off."""
        return addresses.admin(self.uri)

    @property
    def is_tls(self) -> bool:
        return self.uri.startswith(f"{addresses.HTTPS}:")


class Settings(Section):
    """All settings of a broker. `config.load.load` makes them, and fills in the broker's name."""

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
        """Return the source of this dotted key's value; None: it is the default."""
        return self._origins.get(key)

    @property
    def origins(self) -> Mapping[str, str]:
        """Sources of all values that are not defaults, by dotted key."""
        return self._origins

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the operator about the reading of the settings, a sentence each."""
        return self._notes

    def with_level(self, level: str) -> Self:
        """Return the settings with another ``logging.level``, that of the option of `run`."""
        return self.model_copy(update={"logging": self.logging.model_copy(update={"level": level})})

    def with_origins(self, origins: dict[str, str], notes: Sequence[str] = ()) -> Self:
        copy: Any = self.model_copy()
        copy._origins = dict(origins)
        copy._notes = tuple(notes)
        return copy  # type: ignore[no-any-return]


def default_name(connectors: tuple[ConnectorSettings, ...]) -> str:
    """Return `<hostname>-<port of the first connector>`: two brokers of one host differ, and each keeps its name."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:90] or "tandemmq"
    return f"{host}-{connectors[0].address.port}" if connectors else host
