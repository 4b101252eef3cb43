"""Ids of transactions, local and XA, in KahaDB's records."""

from __future__ import annotations

import re
from typing import NamedTuple

from tandemmq.store.records.errors import RecordDamaged


class LocalTransactionId(NamedTuple):
    """Id of a local transaction. ``value`` is the number that its connection gave it."""

    connection_id: str
    value: int

    @property
    def key(self) -> str:
        """Id as text, in ActiveMQ's form; :func:`transaction_of_key` is the inverse."""
        return f"TX:{self.connection_id}:{self.value}"


class XaTransactionId(NamedTuple):
    """Id of a branch of a distributed transaction (javax.transaction.xa.Xid)."""

    format_id: int
    global_id: bytes
    branch: bytes

    @property
    def key(self) -> str:
        """Id as text, with bytes in hexadecimal; :func:`transaction_of_key` is the inverse."""
        return f"XID:[{self.format_id},globalId={self.global_id.hex()},branchId={self.branch.hex()}]"


TransactionId = LocalTransactionId | XaTransactionId

_LOCAL_KEY = re.compile(r"TX:(.*):(-?\d+)", re.DOTALL)
_XA_KEY = re.compile(r"XID:\[(-?\d+),globalId=((?:[0-9a-f]{2})*),branchId=((?:[0-9a-f]{2})*)\]")


def transaction_of_key(key: str) -> TransactionId:
    """Return the transaction id with this ``key``. Raises RecordDamaged for any other text."""
    if local := _LOCAL_KEY.fullmatch(key):
        return LocalTransactionId(local[1], int(local[2]))
    if xa := _XA_KEY.fullmatch(key):
        return XaTransactionId(int(xa[1]), bytes.fromhex(xa[2]), bytes.fromhex(xa[3]))
    raise RecordDamaged(f"not the key of a transaction: {key!r}")
