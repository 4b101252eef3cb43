"""Start of a connection: the SASL login (AMQP 1.0, part 5), then the client's open and the broker's answer (2.4.1 and
2.7.1). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from tandemmq.broker.core.commands import ClientError, Connect, ErrorKind, LogIn, Receipt, Undecided
from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.errors import INVALID_FIELD, NOT_ALLOWED, UNAUTHORIZED, AmqpError, condition_of
from tandemmq.broker.protocols.amqp.frames import FRAME_BYTES_MIN, FRAME_HEAD_BYTES
from tandemmq.broker.protocols.amqp.links import UNSETTLED_MAX, Callbacks
from tandemmq.broker.protocols.amqp.schema import Error, SaslInit
from tandemmq.broker.protocols.amqp.types import Symbol, UInt

# SASL mechanisms.
ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
# Old clients try them in this order.
MECHANISMS: Final = (PLAIN, ANONYMOUS)
# Codes of a SASL outcome. After SASL_AUTH, Qpid JMS does not reconnect; after SASL_SYS_TEMP, it tries the next broker.
SASL_OK, SASL_AUTH, SASL_SYS, SASL_SYS_PERM, SASL_SYS_TEMP = range(5)
# Maximum size of a client's SASL response.
RESPONSE_BYTES_MAX: Final = 8 * 1024
# Highest channel of a connection.
CHANNEL_MAX: Final = 1_023
# Shortest idle-time-out that a client may request.
IDLE_MS_MIN: Final = 200
# Limit of the brokers in an open.
BROKERS_MAX: Final = 100
ANONYMOUS_RELAY: Final = Symbol("ANONYMOUS-RELAY")
SHARED_SUBS: Final = Symbol("SHARED-SUBS")
DELAYED_DELIVERY: Final = Symbol("DELAYED_DELIVERY")
# Enforcing Connection Uniqueness 1.0: one connection for each container-id.
SOLE_CONNECTION: Final = Symbol("sole-connection-for-container")
_POLICY: Final = Symbol("sole-connection-enforcement-policy")
_REFUSE_CONNECTION, _CLOSE_EXISTING = range(2)
_ENFORCED: Final = Symbol("sole-connection-enforcement")
_FAILED: Final = Symbol("amqp:connection-establishment-failed")
_BROKERS: Final = Symbol("failover-server-list")
PRODUCT: Final = "TandemMQ"


@dataclass(frozen=True, slots=True)
class AmqpLimits:
    """Settings of the connector. ``container_id``: container-id of the broker. ``idle_ms``: longest permitted silence
    of a client in milliseconds; the open announces half of it; 0: no limit. ``allows_no_sasl``: an anonymous client may
    connect without SASL. ``steals_links``: a client whose container-id is in use replaces the other connection of its
    user. ``failover_uris``: addresses of all brokers for clients of this connector; the list may be changed in
    place."""

    container_id: str
    version: str = ""
    message_bytes_max: int = 100 << 20
    frame_bytes_max: int = 128 * 1024
    idle_ms: int = 30_000
    unsettled_max: int = UNSETTLED_MAX  # deliveries of one link that the client has not settled
    allows_no_sasl: bool = True
    steals_links: bool = False
    failover_uris: Sequence[str] = ()


def wrong_header(header: bytes) -> str:
    """Return the text of the error for an unexpected protocol header."""
    if header.startswith(b"AMQP"):
        if header[4:] in (b"\0\0\x09\x01", b"\1\1\0\x0a", b"\1\1\x08\0", b"\1\1\0\x09"):
            return "the client speaks AMQP 0-9-1 or 0-10, as for RabbitMQ; this connector speaks AMQP 1.0"
        if header == frames.AMQP:
            return "the client connects without SASL; this connector needs SASL PLAIN, ANONYMOUS or EXTERNAL"
        return f"the client speaks AMQP {'.'.join(map(str, header[5:]))} (protocol id {header[4]}); this is AMQP 1.0"
    return "the client does not speak AMQP; this connector speaks AMQP 1.0"


class LoginRefused(AmqpError):
    """A login that is refused before the password is checked. ``code``: code of the SASL outcome."""

    def __init__(self, text: str, code: int = SASL_AUTH) -> None:
        super().__init__(UNAUTHORIZED, text)
        self.code = code


def mechanisms_for(certificate: str | None) -> tuple[str, ...]:
    """Return the mechanisms to offer a client. ``certificate``: subject of its verified certificate."""
    return MECHANISMS if certificate is None else (EXTERNAL, *MECHANISMS)


def login_of(init: SaslInit, certificate: str | None, receipt: Receipt) -> LogIn:
    """Return the command that checks the credentials of a client. ``certificate``: subject of its verified certificate.
    Raises LoginRefused."""
    response = init.initial_response or b""
    if init.mechanism == ANONYMOUS:
        return LogIn(None, None, receipt)
    if init.mechanism == EXTERNAL and certificate is not None:
        # prove: amqp-certificate-is-its-own-user "response not in" -> "False and response not in"
        if response not in (b"", certificate.encode()):
            raise LoginRefused("SASL EXTERNAL: the client wants to act for another user")
        return LogIn(None, None, receipt, is_external=True)
    if init.mechanism != PLAIN:
        raise LoginRefused(f"the SASL mechanism {init.mechanism[:40]!r} was not offered", SASL_SYS_PERM)
    if len(response) > RESPONSE_BYTES_MAX:
        raise LoginRefused("the response of SASL PLAIN is too long")
    if not response:
        return LogIn(None, None, receipt)
    try:
        parts = [each.decode() for each in response.split(b"\0")]
    except UnicodeDecodeError:
        raise LoginRefused("the response of SASL PLAIN is not UTF-8") from None
    if len(parts) == 3:
        identity, login, passcode = parts
        if identity not in ("", login):
            raise LoginRefused("SASL PLAIN: the client wants to act for another user")
    elif len(parts) == 2:
        login, passcode = parts
    else:
        raise AmqpError(INVALID_FIELD, "the response of SASL PLAIN does not have three parts")
    return LogIn(login, passcode, receipt)


def sasl_code_of(error: ClientError) -> int:
    """Return the code of the outcome for a refused login."""
    if isinstance(error, Undecided) or error.kind in (ErrorKind.RESOURCE, ErrorKind.TIMEOUT):
        return SASL_SYS_TEMP
    return SASL_AUTH if error.kind in (ErrorKind.LOGIN, ErrorKind.SECURITY) else SASL_SYS


def check_open(opened: schema.Open) -> None:
    """Raise AmqpError for an invalid open."""
    if not opened.container_id:
        raise AmqpError(INVALID_FIELD, "the open has no container-id")
    if opened.max_frame_size < FRAME_BYTES_MIN:
        raise AmqpError(INVALID_FIELD, f"max-frame-size is {FRAME_BYTES_MIN} at least")
    if 0 < (opened.idle_time_out or 0) < IDLE_MS_MIN:
        raise AmqpError(NOT_ALLOWED, f"idle-time-out is {IDLE_MS_MIN} ms at least")


def connect_of(
    opened: schema.Open, limits: AmqpLimits, login: str | None, receipt: Callbacks, *, is_logged_in: bool
) -> Connect:
    """Return the command for an open. Raises AmqpError.

    A container-id is unique only if the client requests that, because rhea uses one container-id for all connections of
    a program.
    """
    if SOLE_CONNECTION not in opened.desired_capabilities:
        return Connect(None, login, None, receipt=receipt, is_logged_in=is_logged_in)
    policy = (opened.properties or {}).get(_POLICY, _REFUSE_CONNECTION)
    if (type(policy) is not UInt and policy != _REFUSE_CONNECTION) or policy > _CLOSE_EXISTING:
        raise AmqpError(INVALID_FIELD, f"{_POLICY} is 0 or 1")
    return Connect(
        opened.container_id,
        login,
        None,
        receipt=receipt,
        steals_client_id=limits.steals_links or policy == _CLOSE_EXISTING,
        is_logged_in=is_logged_in,
    )


def answer_to(connect: Connect, limits: AmqpLimits, frame_bytes_max: int) -> schema.Open:
    """Return the broker's open for an accepted client. It lists all brokers if the list fits into a frame of
    ``frame_bytes_max``."""
    capabilities: tuple[Symbol, ...] = (ANONYMOUS_RELAY, DELAYED_DELIVERY, SHARED_SUBS)
    if connect.client_id is not None:
        capabilities += (SOLE_CONNECTION,)
    brokers = [_broker(each) for each in limits.failover_uris[:BROKERS_MAX]]
    opened = _open(limits, capabilities, {_BROKERS: brokers} if brokers else {})
    is_too_long = FRAME_HEAD_BYTES + len(write_composite(opened)) > frame_bytes_max
    return _open(limits, capabilities, {}) if is_too_long else opened


def refusal(limits: AmqpLimits) -> schema.Open:
    """Return the open for a refused client. After it the broker sends a close with the reason. Qpid JMS reads both."""
    return _open(limits, (), {_FAILED: True})


def _open(limits: AmqpLimits, capabilities: tuple[str, ...], properties: dict[Symbol, Any]) -> schema.Open:
    return schema.Open(
        limits.container_id,
        max_frame_size=limits.frame_bytes_max,
        channel_max=CHANNEL_MAX,
        idle_time_out=limits.idle_ms // 2 or None,
        offered_capabilities=capabilities,
        properties={
            **properties,
            Symbol("product"): PRODUCT,
            Symbol("version"): limits.version,
            Symbol("queue-prefix"): "queue://",
            Symbol("topic-prefix"): "topic://",
        },
    )


def _broker(uri: str) -> dict[Symbol, Any]:
    """Return the address of a broker, as in a redirection (AMQP 1.0, 2.8.16)."""
    parts = urlsplit(uri)
    return {
        Symbol("network-host"): parts.hostname or "",
        Symbol("port"): parts.port or 0,
        Symbol("scheme"): parts.scheme,
    }


def reason_of(error: ClientError) -> Error:
    """Return the reason why a connection is refused or ended."""
    info: dict[Symbol, Any] | None = None
    if error.kind is ErrorKind.CLIENT_ID:
        info = {Symbol("invalid-field"): Symbol("container-id")}
    elif error.kind is ErrorKind.TAKEN_OVER:
        info = {_ENFORCED: True}
    return Error(condition_of(error), error.message, info)
