"""AMQP errors: condition, text, and scope."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from tandemmq.broker.core.commands import ClientError, ErrorKind, Undecided

# Conditions (AMQP 1.0, 2.8.15 to 2.8.18, 4.5.8).
INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
PRECONDITION_FAILED: Final = "amqp:precondition-failed"
ILLEGAL_STATE: Final = "amqp:illegal-state"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
TRANSFER_LIMIT: Final = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE: Final = "amqp:link:message-size-exceeded"
LINK_STOLEN: Final = "amqp:link:stolen"
UNKNOWN_TRANSACTION: Final = "amqp:transaction:unknown-id"
ROLLED_BACK: Final = "amqp:transaction:rollback"

_CONDITIONS: Final = {
    ErrorKind.GENERAL: ILLEGAL_STATE,
    ErrorKind.SECURITY: UNAUTHORIZED,
    ErrorKind.LOGIN: UNAUTHORIZED,
    ErrorKind.CLIENT_ID: INVALID_FIELD,
    ErrorKind.TAKEN_OVER: RESOURCE_LOCKED,
    ErrorKind.TIMEOUT: RESOURCE_LIMIT,
    ErrorKind.SELECTOR: INVALID_FIELD,
    ErrorKind.DESTINATION: NOT_FOUND,
    ErrorKind.RESOURCE: RESOURCE_LIMIT,
    ErrorKind.ROLLED_BACK: ROLLED_BACK,
    ErrorKind.STATE: ILLEGAL_STATE,
    ErrorKind.FORMAT: DECODE_ERROR,
}


class Scope(Enum):
    """Endpoint that an error ends: the smallest one that it affects."""

    CONNECTION = auto()
    SESSION = auto()
    LINK = auto()


class AmqpError(Exception):
    """An error of the peer. ``condition``: the symbol of the error; ``scope``: the endpoint that ends."""

    def __init__(self, condition: str, text: str, scope: Scope = Scope.CONNECTION) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text
        self.scope = scope


class DecodeError(AmqpError):
    """Bytes that are not AMQP."""

    def __init__(self, text: str) -> None:
        super().__init__(DECODE_ERROR, text)


def not_implemented(what: str, scope: Scope = Scope.LINK) -> AmqpError:
    """Return the error for a part of AMQP that this broker does not serve yet; ``what`` is its name."""
    return AmqpError(NOT_IMPLEMENTED, f"this broker does not serve {what} yet", scope)


class ConnectionFailure(ClientError):
    """A fatal error with its condition."""

    def __init__(self, error: AmqpError) -> None:
        super().__init__(error.text)
        self.condition = error.condition


def condition_of(error: ClientError) -> str:
    """Return the condition for an error of the broker."""
    if isinstance(error, ConnectionFailure):
        return error.condition
    if isinstance(error, Undecided):
        return RESOURCE_LIMIT  # after UNAUTHORIZED, Qpid JMS does not reconnect
    return _CONDITIONS.get(error.kind, INTERNAL_ERROR)
