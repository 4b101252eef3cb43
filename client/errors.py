"""What the client raises, all in one place."""


class ClientError(Exception):
    """What this package raises when something goes wrong that is no mistake of the caller."""


class NoBroker(ClientError):
    """No broker answered within the limits of the URL; messages without a receipt may or may not be stored."""


class BrokerError(ClientError):
    """The broker refused something; the message is what its ERROR frame says. What was refused is not sent again."""


class TlsError(ClientError):
    """A certificate or a key cannot be used; the message names the file. Nothing was connected to."""


class TransactionLost(ClientError):
    """The connection was lost and the transaction with it: nothing of it was done. Begin again."""


class InDoubt(ClientError):
    """COMMIT was sent and its receipt was lost: all of the transaction was done, or nothing.

    Only the caller can check.
    """


class Closed(ClientError):
    """The client was closed, or never connected; a subscription was ended."""
