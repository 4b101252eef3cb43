"""A proof that two directories hold the same: for each queue and subscription a count and a hash, in order.

The hash is SHA-256 over the messages as a receiver sees them, one after the other: id, destination, kind of
body, body, properties and headers. Details that only a store sees (places in files, versions of formats, the broker's
own times) are excluded, so the same messages have the same hash in every store.
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
    """``count`` messages (or operations), their ``bytes`` of bodies, and the hash over all of them in order."""

    count: int
    bytes: int
    digest: str


class Summing:
    """A Sum that is being computed. ``terms`` enter the hash before the first message."""

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


# Queue, subscription or prepared transaction in words -> the sum of its contents
Proof = dict[str, Sum]


def fingerprint(message: Message) -> bytes:
    """Return all that a receiver sees of a message, each field with its length, so that no two messages are equal."""
    properties = message.properties
    fields = (
        message.message_id.encode("utf-8", "surrogatepass"),
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


def begin(contents: Contents, owner: OwnerState) -> Summing:
    """Begin the proof of a queue or subscription; the terms of a subscription are a part of it."""
    if owner.subscription_name is None:
        return Summing()
    info = contents.subscription(owner).info
    assert info is not None, "a live subscription says what it is"
    subscribed = info.subscribed_destination or info.destination
    asked = (str(info.destination), str(subscribed), info.client_id, info.name, info.selector, info.no_local)
    return Summing(repr(asked).encode("utf-8", "surrogatepass"))


def prove(
    contents: Contents,
    owners: list[OwnerState],
    *,
    counts: Callable[[OwnerState, str], bool] = lambda owner, message_id: True,
    on_read: Callable[[int], object] = lambda size: None,
) -> Proof:
    """Read all messages of ``owners``. Only messages for which ``counts`` is true enter; ``on_read`` gets the bytes
    read."""
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
    """Return the proof of prepared transactions, with those operations whose destinations are selected."""
    proof: Proof = {}
    for key, transaction in contents.state.transactions.items():
        if not transaction.is_prepared:
            continue
        summing = Summing()
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
    """Return the parts of ``source`` that differ in the target, in words; empty if all is proved."""
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
