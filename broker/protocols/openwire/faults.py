"""Java exceptions for mistakes: OpenWire names classes, and the client makes an exception of that class.

The broker names only classes that every client has (openwire.md 4.4). For an unknown class, a Java client creates a
plain Throwable, which its program gets as a JMSException. A 6.x client reads ``javax.jms`` as ``jakarta.jms`` in
version 12, and in no earlier one (BaseDataStreamMarshaller.createThrowable in org.apache.activemq.openwire.v12, and in
v11 and before).
"""

from __future__ import annotations

from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.protocols.openwire.types import Throwable

# The marshallers of versions 1 and 10 cut longer texts, and an XA code is at the very end.
MESSAGE_CHARS_MAX = 1000

_CLASSES = {
    ErrorKind.GENERAL: "javax.jms.JMSException",
    ErrorKind.SECURITY: "java.lang.SecurityException",
    ErrorKind.LOGIN: "java.lang.SecurityException",
    ErrorKind.CLIENT_ID: "javax.jms.InvalidClientIDException",
    ErrorKind.TAKEN_OVER: "javax.jms.JMSException",
    ErrorKind.TIMEOUT: "javax.jms.JMSException",
    ErrorKind.SELECTOR: "javax.jms.InvalidSelectorException",
    ErrorKind.DESTINATION: "javax.jms.InvalidDestinationException",
    ErrorKind.RESOURCE: "javax.jms.ResourceAllocationException",
    ErrorKind.ROLLED_BACK: "javax.jms.TransactionRolledBackException",
    ErrorKind.STATE: "java.lang.IllegalStateException",
    ErrorKind.FORMAT: "javax.jms.MessageFormatException",
    ErrorKind.XA: "javax.transaction.xa.XAException",
}


def throwable_of(error: ClientError) -> Throwable:
    """Return the exception that reports ``error`` to a client. Its text is never null, because old clients fail if it
    is."""
    text = f"{error.message}. {error.detail}" if error.detail else error.message
    text = text[:MESSAGE_CHARS_MAX]
    if error.kind is ErrorKind.XA:
        text += f" xaErrorCode:{error.xa_code}"  # TransactionContext.parseFromMessageOr looks for it
    return Throwable(_CLASSES[error.kind], text)


def text_of(throwable: Throwable | None) -> str:
    """Return the text that Java's ``toString`` gives of an exception: dead letters carry it as their cause
    (RegionBroker)."""
    if throwable is None:
        return ""
    if throwable.message is None:
        return throwable.class_name or ""
    return f"{throwable.class_name}: {throwable.message}"
