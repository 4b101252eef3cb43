"""Proof that two directories have the same contents: for each queue and subscription a count and a hash.

The hash is SHA-256 over the messages in their order, as a receiver sees them: id, destination, kind of body, body,
properties and headers. Details of a store (locations, format versions, times of the broker) are excluded, so the same
messages have the same hash in every store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from tandemmq.store.migration.contents import Contents, read_message
from tandemmq.store.records.commands import AddMessage
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.properties import encode_properties
from tandemmq.store.state.owners import OwnerState

PREPARED = "prepared transaction "


@dataclass(frozen=True, slots=True)
class Sum:
    """Number of messages (or operations), bytes of their bodies, and hex digest of the hash over all of them."""

    count: int
    bytes: int
    digest: str


class RunningSum:
    """Sum that is being computed. ``terms`` are hashed before the first message."""

    __slots__ = ("_count", "_hash", "_size")

    def __init__(self, terms: bytes = b"") -> None:
        self._count = 0
        self._size = 0
        self._hash = hashlib.sha256(terms)

    def add(self, print: bytes, size: int) -> None:
        """Add an item: its fingerprint, and the number of bytes of its body."""
        self._count += 1
        self._size += size
        self._hash.update(print)

    def result(self) -> Sum:
        return Sum(self._count, self._size, self._hash.hexdigest())


# Text that names a queue, subscription or prepared transaction -> the sum of its contents
Proof = dict[str, Sum]


def fingerprint(message: Message) -> bytes:
    """Return the bytes to hash for a message: all that a receiver sees, each field with its length. Different messages
    have different bytes."""
    properties = message.properties
    fields = (
        message.message_id.encode("utf-8", "surrogatepass"),
        (message.text_view or "").encode("utf-8", "surrogatepass"),
        str(message.destination).encode("utf-8", "surrogatepass"),
        repr(
            (
                int(message.body_kind),
                bool(message.persistent),
                message.priority,
                message.expiration,
                message.timestamp,
                message.correlation_id,
                None if message.reply_to is None else str(message.reply_to),
                message.type,
                message.group_id,
                message.group_sequence,
                message.user_id,
                message.redelivery_counter,
                None if message.original_destination is None else str(message.original_destination),
            )
        ).encode("utf-8", "surrogatepass"),
        encode_properties(dict(sorted(properties.items()))) if properties else b"",
        message.body,
    )
    return b"".join(part for one in fields for part in (len(one).to_bytes(8, "big"), one))


def begin(contents: Contents, owner: OwnerState) -> RunningSum:
    """Return the running sum of a queue or subscription without messages. The selector, pattern and other options of a
    subscription are hashed first."""
    if owner.subscription_name is None:
        return RunningSum()
    info = contents.subscription(owner).info
    assert info is not None, "the newest record of a live subscription has a description"
    subscribed = info.subscribed_destination or info.destination
    asked = (str(info.destination), str(subscribed), info.client_id, info.name, info.selector, info.no_local)
    return RunningSum(repr(asked).encode("utf-8", "surrogatepass"))


def prove(
    contents: Contents,
    owners: list[OwnerState],
    *,
    counts: Callable[[OwnerState, str], bool] = lambda owner, message_id: True,
    on_read: Callable[[int], object] = lambda size: None,
) -> Proof:
    """Read the messages of ``owners``, and return their proof. Only messages for which ``counts`` returns True are
    included. ``on_read`` is called with the size of each."""
    proof: Proof = {}
    for owner in owners:
        summing = begin(contents, owner)
        for stored in contents.messages(owner.id):
            if counts(owner, stored.add.message_id):
                summing.add(fingerprint(stored.message), len(stored.message.body))
                on_read(stored.size)
        proof[str(owner)] = summing.result()
    return proof


def prove_prepared(contents: Contents, selects: Callable[[Destination], bool] = lambda destination: True) -> Proof:
    """Return the proof of all prepared transactions. Only operations on selected destinations are included."""
    proof: Proof = {}
    for key, transaction in contents.state.transactions.items():
        if not transaction.is_prepared:
            continue
        summing = RunningSum()
        for operation in transaction.operations:
            if not selects(operation.destination):
                continue
            command = contents.operation(operation)
            if isinstance(command, AddMessage):
                message, _ = read_message(command)
                summing.add(b"\1" + fingerprint(message), len(message.body))
            else:
                what = (str(command.destination), command.message_id, command.subscription_key)
                summing.add(b"\2" + repr(what).encode("utf-8", "surrogatepass"), 0)
        found = summing.result()
        if found.count:
            proof[PREPARED + key] = found
    return proof


def differences(source: Proof, target: Proof) -> list[str]:
    """Return texts for the parts of ``source`` that differ in ``target``; empty if all parts are equal."""
    found = []
    for name, sum in source.items():
        other = target.get(name)
        if other is None:
            found.append(f"{name}: not in the target ({sum.count} in the source)")
        elif other.count != sum.count:
            found.append(f"{name}: {sum.count} in the source, {other.count} in the target")
        elif other.digest != sum.digest:
            found.append(f"{name}: {sum.count} in both, but the hashes differ: another content or order")
    return found
