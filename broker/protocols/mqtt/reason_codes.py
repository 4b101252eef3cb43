"""Reason codes of MQTT 5.0, their counterparts in MQTT 3.x, and the errors that carry them. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tandemmq.broker.core.commands import ClientError, ErrorKind

#: Lowest reason code of a failure.
ERRORS_FROM: Final = 0x80


class Reason(IntEnum):
    """Reason codes (MQTT 5.0, 2.4). From 0x80 on they are failures."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


# MQTT 3.1.1, Table 3.1; those of 3.1 are the same.
_RETURN_CODES: Final = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.SERVER_BUSY: 3,
    Reason.SERVER_SHUTTING_DOWN: 3,
    Reason.QUOTA_EXCEEDED: 3,
    Reason.USE_ANOTHER_SERVER: 3,
    Reason.SERVER_MOVED: 3,
    Reason.CONNECTION_RATE_EXCEEDED: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.BAD_AUTHENTICATION_METHOD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.BANNED: 5,
}


def has_return_code(reason: Reason) -> bool:
    """Return whether CONNACK of MQTT 3.x has a code for ``reason``. Without a code, the connection is closed without
    CONNACK (3.1.1: MQTT-3.1.4-1, MQTT-3.2.2-6)."""
    return reason in _RETURN_CODES


def return_code(reason: Reason) -> int:
    """Return the return code of CONNACK in MQTT 3.x for ``reason``; "server unavailable" if there is no code for it."""
    return _RETURN_CODES.get(reason, _RETURN_CODES[Reason.SERVER_UNAVAILABLE])


class MqttError(ClientError):
    """Fatal error of the peer, with its reason code of MQTT 5.0."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def malformed(text: str) -> MqttError:
    """Return the error for bytes that are not a valid packet (MQTT 5.0, 1.2, Malformed Packet)."""
    return MqttError(Reason.MALFORMED_PACKET, text)


def protocol_error(text: str) -> MqttError:
    """Return the error for a packet that can be read, but breaks the protocol (MQTT 5.0, 1.2, Protocol Error)."""
    return MqttError(Reason.PROTOCOL_ERROR, text)


_REASONS: Final = {
    ErrorKind.SECURITY: Reason.NOT_AUTHORIZED,
    ErrorKind.LOGIN: Reason.BAD_USER_NAME_OR_PASSWORD,
    ErrorKind.CLIENT_ID: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    ErrorKind.DESTINATION: Reason.TOPIC_NAME_INVALID,
    ErrorKind.RESOURCE: Reason.QUOTA_EXCEEDED,
    ErrorKind.FORMAT: Reason.PAYLOAD_FORMAT_INVALID,
    ErrorKind.TAKEN_OVER: Reason.SESSION_TAKEN_OVER,
    ErrorKind.TIMEOUT: Reason.KEEP_ALIVE_TIMEOUT,
}


def reason_of(error: ClientError) -> Reason:
    """Return the reason code of MQTT 5.0 for ``error``."""
    if isinstance(error, MqttError):
        return error.reason
    return _REASONS.get(error.kind, Reason.UNSPECIFIED_ERROR)
