"""TransactionInfo as commands of the broker (openwire.md 12): local transactions and branches of distributed ones."""

from __future__ import annotations

from typing import Final

from tandemmq.broker.core.commands import (
    XAER_NOTA,
    XAER_PROTO,
    Abort,
    Begin,
    ClientError,
    Commit,
    ErrorKind,
    Prepare,
    Receipt,
    refusal,
)
from tandemmq.broker.protocols.openwire.schema import TransactionInfo, TransactionType
from tandemmq.store.records.transactions import XaTransactionId

# Plain numbers: to find a member of an enumeration takes longer than to compare it.
_BEGIN: Final = int(TransactionType.BEGIN)
_PREPARE: Final = int(TransactionType.PREPARE)
_COMMIT_ONE_PHASE: Final = int(TransactionType.COMMIT_ONE_PHASE)
_COMMIT_TWO_PHASE: Final = int(TransactionType.COMMIT_TWO_PHASE)
_ROLLBACK: Final = int(TransactionType.ROLLBACK)
_FORGET: Final = int(TransactionType.FORGET)
_END: Final = int(TransactionType.END)


def command_of(info: TransactionInfo, receipt: Receipt | None) -> Begin | Prepare | Commit | Abort | None:
    """Return the command for ``info``, which is not RECOVER; None for END, which changes nothing in the broker."""
    id = info.transaction_id
    if id is None:
        raise refusal(f"TransactionInfo of type {info.type} names no transaction")
    xa = id if isinstance(id, XaTransactionId) else None
    type = info.type
    if type == _BEGIN:
        return Begin(id.key, receipt, xa=xa)
    if type in (_COMMIT_ONE_PHASE, _COMMIT_TWO_PHASE):
        # A local transaction has no phases (LocalTransaction.commit).
        is_two_phase = type == _COMMIT_TWO_PHASE and xa is not None
        return Commit(id.key, receipt, xa=xa, is_two_phase=is_two_phase)
    if type == _ROLLBACK:
        return Abort(id.key, receipt, xa=xa)
    if type == _END:
        return None
    if type == _PREPARE:
        if xa is None:
            raise _xa_error(XAER_PROTO, f"Transaction {id.key} is local, and only a branch of XA can be prepared")
        return Prepare(id.key, xa, receipt)
    if type == _FORGET:
        # FORGET is for branches that the broker decided without the transaction manager, and this broker never does
        # that.
        raise _xa_error(XAER_NOTA, f"Nothing was decided heuristically about {id.key}")
    raise refusal(f"TransactionInfo of the unknown type {type}")


def _xa_error(code: int, message: str) -> ClientError:
    return ClientError(message, is_fatal=False, kind=ErrorKind.XA, xa_code=code)
