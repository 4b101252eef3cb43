"""Termini of AMQP links: requested sources and targets, their destinations and filters, and the answers. Pure.

An address names a destination of the broker:

    queue://a  topic://a  temp-queue://a  temp-topic://a     by the scheme
    a                                                        by the capability of the terminus: a topic, else a queue

Composites and wildcards stay in the name: the engine resolves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.broker.core.commands import FoundDurable
from tandemmq.broker.core.names import SCHEMES
from tandemmq.broker.protocols.amqp.codec import code_of
from tandemmq.broker.protocols.amqp.errors import INVALID_FIELD, RESOURCE_LIMIT, AmqpError, Scope, not_implemented
from tandemmq.broker.protocols.amqp.links import InLink, kept_outcome
from tandemmq.broker.protocols.amqp.schema import NEVER, SESSION_END, Attach, Coordinator, Rejected, Source, Target
from tandemmq.broker.protocols.amqp.subscriptions import GLOBAL, SHARED, Subscription
from tandemmq.broker.protocols.amqp.types import Described, Symbol, ULong
from tandemmq.store.records.message import Destination, DestinationKind

# Capabilities of a terminus (AMQP JMS Mapping).
_TOPIC: Final = "topic"


def destination_of(address: Any, capabilities: Sequence[str] = ()) -> Destination:
    """Return the destination of a terminus. Raises AmqpError with the scope of a link."""
    if not isinstance(address, str) or not address:
        raise AmqpError(INVALID_FIELD, "the address is not set", Scope.LINK)
    if "?" in address:
        raise not_implemented("options of an address")
    found = scheme_of(address)
    if found is not None:
        if not found.name:
            raise AmqpError(INVALID_FIELD, f"the address {address[:200]!r} has no name", Scope.LINK)
        return found
    return Destination(DestinationKind.TOPIC if _TOPIC in capabilities else DestinationKind.QUEUE, address)


def scheme_of(address: str) -> Destination | None:
    """Return the destination of an address with a scheme; None for another address."""
    for scheme, kind in SCHEMES.items():
        if address.startswith(scheme):
            return Destination(kind, address.removeprefix(scheme))
    return None


def reply_to_of(address: str) -> Destination:
    """Return the destination of a reply-to. An address without a scheme is a queue."""
    return scheme_of(address) or Destination(DestinationKind.QUEUE, address)


def address_of(destination: Destination) -> str:
    """Return the address of a destination."""
    return str(destination)


# Longest name of a link, in characters. It is in memory as long as the link.
NAME_CHARACTERS_MAX: Final = 1_024
_SELECTOR: Final = "apache.org:selector-filter:string"
_NO_LOCAL: Final = "apache.org:no-local-filter:list"
_SELECTOR_CODE: Final = 0x0000468C00000004
_NO_LOCAL_CODE: Final = 0x0000468C00000003
_COPY: Final = "copy"
# Receiver settle modes.
FIRST: Final = 0
SECOND: Final = 1
UNSETTLED_STATE: Final = 2  # of terminus-durability
# Capabilities of a terminus (AMQP JMS Mapping).
_TEMPORARY_TOPIC: Final = "temporary-topic"
_CAPABILITIES: Final = {
    DestinationKind.QUEUE: "queue",
    DestinationKind.TOPIC: "topic",
    DestinationKind.TEMP_QUEUE: "temporary-queue",
    DestinationKind.TEMP_TOPIC: _TEMPORARY_TOPIC,
}
# A dynamic node is deleted with its link.
_DELETED_ON_CLOSE: Final = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}


@dataclass(slots=True, frozen=True)
class SourceRequest:
    """Request of a receiver: its destination, and the filters that the broker applies. ``filter``: these filters, for
    the answer."""

    destination: Destination
    selector: str | None
    no_local: bool
    is_browser: bool
    filter: dict[Any, Any] | None


def check_attach(attach: Attach) -> None:
    """Raise AmqpError for a link that is not supported, or that has a long name."""
    if len(attach.name) > NAME_CHARACTERS_MAX:
        text = f"the name of a link has {NAME_CHARACTERS_MAX} characters at most"
        raise AmqpError(RESOURCE_LIMIT, text, Scope.LINK)
    if attach.role and isinstance(attach.target, Coordinator):
        raise AmqpError(INVALID_FIELD, "a client that receives has no coordinator as its target", Scope.LINK)


def temporary_of(attach: Attach, next_name: Callable[[], str]) -> Destination | None:
    """Return the temporary destination to create for a link; None if the link does not request one. Raises
    AmqpError."""
    terminus = attach.source if attach.role else attach.target
    if not isinstance(terminus, Source | Target) or not terminus.dynamic:
        return None
    if terminus.address is not None:
        raise AmqpError(INVALID_FIELD, "a dynamic node has no address before it is made", Scope.LINK)
    is_topic = _TEMPORARY_TOPIC in terminus.capabilities
    return Destination(DestinationKind.TEMP_TOPIC if is_topic else DestinationKind.TEMP_QUEUE, next_name())


def target_destination(attach: Attach, temporary: Destination | None) -> Destination | None:
    """Return the destination of a sender; None if each message names its own (anonymous relay). Raises AmqpError."""
    target = attach.target
    if temporary is not None:
        return temporary
    if target is None:
        return None
    if not isinstance(target, Target):
        raise AmqpError(INVALID_FIELD, "the target of the link is not a target", Scope.LINK)
    if target.address is None or target.address == "":
        return None
    return destination_of(target.address, target.capabilities)


def source_request(attach: Attach, temporary: Destination | None) -> SourceRequest:
    """Return the request of a receiver. Raises AmqpError."""
    source = attach.source
    if not isinstance(source, Source):
        raise AmqpError(INVALID_FIELD, "the source of the link is not a source", Scope.LINK)
    if source.durable > UNSETTLED_STATE:
        raise AmqpError(INVALID_FIELD, f"terminus-durability is {UNSETTLED_STATE} at most", Scope.LINK)
    destination = temporary or destination_of(source.address, source.capabilities)
    is_browser = source.distribution_mode == _COPY and not destination.is_topic
    selector: str | None = None
    no_local = False
    kept: dict[Any, Any] = {}
    for key, each in (source.filter or {}).items():
        if not isinstance(each, Described):
            continue  # not applied: the answer does not have it
        name = each.descriptor if isinstance(each.descriptor, Symbol) else None
        code = code_of(each.descriptor)
        if name == _SELECTOR or code == _SELECTOR_CODE:
            if not isinstance(each.value, str):
                raise AmqpError(INVALID_FIELD, "the selector is not a string", Scope.LINK)
            selector = str(each.value).strip() or None
            kept[key] = Described(each.descriptor, str(each.value))
        elif name == _NO_LOCAL or code == _NO_LOCAL_CODE:
            no_local = True
            kept[key] = Described(each.descriptor, [])
    return SourceRequest(destination, selector, no_local, is_browser, kept or None)


def answered_source(
    attach: Attach, request: SourceRequest, temporary: Destination | None, subscription: Subscription | None
) -> Source:
    """Return the source for the answer to an attach."""
    source = attach.source
    assert isinstance(source, Source), "source_request checks it"
    is_durable = subscription is not None and subscription.is_durable
    return Source(
        address=source.address if temporary is None else address_of(temporary),
        durable=source.durable if is_durable else 0,
        expiry_policy=NEVER if is_durable else SESSION_END,
        dynamic=temporary is not None,
        dynamic_node_properties=None if temporary is None else _DELETED_ON_CLOSE,
        distribution_mode=_COPY if request.is_browser else None,
        filter=request.filter,
        default_outcome=plain_outcome(source.default_outcome),
        outcomes=source.outcomes,
        capabilities=_capabilities_of(request.destination, subscription),
    )


def found_source(found: FoundDurable, subscription: Subscription) -> Source:
    """Return the source of a durable subscription that was looked up."""
    filter: dict[Any, Any] = {}
    if found.selector is not None:
        filter[Symbol("jms-selector")] = Described(Symbol(_SELECTOR), found.selector)
    if found.no_local:
        filter[Symbol("no-local")] = Described(Symbol(_NO_LOCAL), [])
    destination = found.destination
    return Source(
        address=None if destination is None else address_of(destination),
        durable=UNSETTLED_STATE,
        expiry_policy=NEVER,
        filter=filter or None,
        capabilities=() if destination is None else _capabilities_of(destination, subscription),
    )


def _capabilities_of(destination: Destination, subscription: Subscription | None) -> tuple[str, ...]:
    kind = _CAPABILITIES[destination.kind]
    if subscription is None or not subscription.is_shared:
        return (kind,)
    return (kind, SHARED, GLOBAL) if subscription.is_global else (kind, SHARED)


def answered_target(attach: Attach, link: InLink) -> Target:
    """Return the target for the answer to an attach."""
    target, destination = attach.target, link.destination
    if destination is None:
        return Target()
    assert isinstance(target, Target), "target_destination checks it"
    is_made = link.temporary is not None
    return Target(
        address=address_of(destination) if is_made else target.address,
        dynamic=is_made,
        dynamic_node_properties=_DELETED_ON_CLOSE if is_made else None,
        capabilities=(_CAPABILITIES[destination.kind],),
    )


def answer_to(
    attach: Attach,
    own_handle: int,
    source: Source | None,
    target: Target | Coordinator | None,
    message_bytes_max: int | None = None,
) -> Attach:
    """Return the answer to an attach, with these termini. It has no map of unsettled deliveries, because the broker
    keeps none of a former attach."""
    return Attach(
        name=attach.name,
        handle=own_handle,
        role=not attach.role,
        snd_settle_mode=attach.snd_settle_mode,
        rcv_settle_mode=rcv_settle_mode_of(attach),
        source=source,
        target=target,
        initial_delivery_count=0 if attach.role else None,
        max_message_size=message_bytes_max,
    )


def refusal_of(attach: Attach, own_handle: int) -> Attach:
    """Return the answer to an attach that is refused: without the terminus of this side."""
    is_sender = attach.role
    source = None if is_sender else plain_source(attach.source)
    return answer_to(attach, own_handle, source, plain_target(attach.target) if is_sender else None)


def rcv_settle_mode_of(attach: Attach) -> int:
    """Return the receiver settle mode for the answer to an attach. A coordinator supports only the first."""
    return SECOND if attach.rcv_settle_mode == SECOND and not isinstance(attach.target, Coordinator) else FIRST


def plain_source(source: Any) -> Source | None:
    """Return the client's source for the answer, with the address only."""
    return Source(address=_plain_address(source.address)) if isinstance(source, Source) else None


def plain_target(target: Any) -> Target | None:
    """Return the client's target for the answer, with the address only."""
    return Target(address=_plain_address(target.address)) if isinstance(target, Target) else None


def _plain_address(address: Any) -> str | None:
    return str(address) if isinstance(address, str) else None


def plain_outcome(outcome: Any) -> Any:
    """Return the default outcome, without annotations and without an error."""
    return Rejected() if isinstance(outcome, Rejected) else kept_outcome(outcome)
