"""Exceptions of the client."""


class ClientError(Exception):
    """Base of the errors of this package that are not mistakes of the caller."""


class NoBroker(ClientError):
    """No broker answered within the limits of the URL; messages without a receipt may or may not be stored."""


class BrokerError(ClientError):
    """The broker refused a request; the message is the text of its ERROR frame. The request is not sent again."""


class TlsError(ClientError):
    """A certificate or a key cannot be used; the message names the file. No connection was made."""


class TransactionLost(ClientError):
    """The connection was lost, and the transaction had no effect. Begin it again."""


class InDoubt(ClientError):
    """COMMIT was sent, and its receipt was lost: the transaction took effect completely or not at all.

    Only the caller can check this.
    """


class Closed(ClientError):
    """The client was closed, or never connected; a subscription was ended."""
