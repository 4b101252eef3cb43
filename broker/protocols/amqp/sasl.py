"""SASL of AMQP (part 5): the login before the open. Pure."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.core.commands import ClientError, ErrorKind, LogIn, Receipt, Undecided
from tandemmq.broker.protocols.amqp.errors import INVALID_FIELD, UNAUTHORIZED, AmqpError
from tandemmq.broker.protocols.amqp.schema import SaslInit

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
# Old clients try them in this order.
MECHANISMS: Final = (PLAIN, ANONYMOUS)
# Codes of an outcome. After AUTH, Qpid JMS does not reconnect; after SYS_TEMP, it tries the next broker.
OK, AUTH, SYS, SYS_PERM, SYS_TEMP = range(5)
RESPONSE_BYTES_MAX: Final = 8 * 1024


class LoginRefused(AmqpError):
    """A login that is refused before the password is checked. ``code``: of the outcome."""

    def __init__(self, text: str, code: int = AUTH) -> None:
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
        raise LoginRefused(f"the SASL mechanism {init.mechanism[:40]!r} was not offered", SYS_PERM)
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


def code_of(error: ClientError) -> int:
    """Return the code of the outcome for a refused login."""
    if isinstance(error, Undecided) or error.kind in (ErrorKind.RESOURCE, ErrorKind.TIMEOUT):
        return SYS_TEMP
    return AUTH if error.kind in (ErrorKind.LOGIN, ErrorKind.SECURITY) else SYS
