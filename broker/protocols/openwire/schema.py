"""OpenWire's commands: the table that the codec interprets (org.apache.activemq.command; openwire.md section 6).

A class is a row of the table, its annotations the columns: see types.py. Defaults are the values of a Java field that
is not set. Types that exist only in the journal (50 to 54), and parts of commands for datagrams (60, 61), are not
defined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from tandemmq.broker.protocols.openwire.types import (
    Array,
    Bool,
    BrokerId,
    Byte,
    Bytes,
    Cached,
    ConnectionId,
    ConsumerId,
    Int,
    Kind,
    Long,
    MessageId,
    Nested,
    ProducerId,
    SessionId,
    Since,
    Text,
    Thrown,
    Until,
    structure,
)
from tandemmq.store.records.message import BodyKind, Destination
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId

MAGIC = b"ActiveMQ"


@dataclass(slots=True)
class Command:
    """Structure that is sent as a frame. Each peer numbers its commands; a response's ``correlation_id`` repeats the
    number."""

    command_id: Int = 0
    response_required: Bool = False


# ---- connections


@structure(1, has_base=False)
class WireFormatInfo(Command):
    """First command in each direction. wireformat.py reads its properties."""

    magic: Annotated[bytes, Kind.MAGIC] = MAGIC
    version: Int = 0
    marshalled_properties: Bytes = None


@structure(2)
class BrokerInfo(Command):
    broker_id: Cached[BrokerId] = None
    broker_url: Text = None
    peer_broker_infos: Array[BrokerInfo] = None
    broker_name: Text = None
    slave_broker: Bool = False
    master_broker: Bool = False
    fault_tolerant_configuration: Bool = False
    duplex_connection: Annotated[Bool, Since(2)] = False
    network_connection: Annotated[Bool, Since(2)] = False
    connection_id: Annotated[Long, Since(2)] = 0
    broker_upload_url: Annotated[Text, Since(3)] = None
    network_properties: Annotated[Text, Since(3)] = None


@structure(3)
class ConnectionInfo(Command):
    connection_id: Cached[ConnectionId] = None
    client_id: Text = None
    password: Text = None
    user_name: Text = None
    broker_path: Array[BrokerId] = None
    broker_master_connector: Bool = False
    manageable: Bool = False
    client_master: Annotated[Bool, Since(2)] = False
    fault_tolerant: Annotated[Bool, Since(6)] = False
    failover_reconnect: Annotated[Bool, Since(6)] = False
    client_ip: Annotated[Text, Since(8)] = None

    def __repr__(self) -> str:
        """Leave out the password: commands end up in logs."""
        return f"ConnectionInfo({self.connection_id}, client_id={self.client_id!r}, user_name={self.user_name!r})"


@structure(4)
class SessionInfo(Command):
    session_id: Cached[SessionId] = None


@structure(91)
class NetworkBridgeFilter:
    """Rearranged in version 10."""

    network_ttl: Annotated[Int, Until(9)] = 0
    network_broker_id: Cached[BrokerId] = None
    message_ttl: Annotated[Int, Since(10)] = 0
    consumer_ttl: Annotated[Int, Since(10)] = 0


@structure(5)
class ConsumerInfo(Command):
    consumer_id: Cached[ConsumerId] = None
    browser: Bool = False
    destination: Cached[Destination] = None
    prefetch_size: Int = 0
    maximum_pending_message_limit: Int = 0
    dispatch_async: Bool = False
    selector: Text = None
    client_id: Annotated[Text, Since(10)] = None
    subscription_name: Text = None
    no_local: Bool = False
    exclusive: Bool = False
    retroactive: Bool = False
    priority: Byte = 0
    broker_path: Array[BrokerId] = None
    additional_predicate: Nested[NetworkBridgeFilter] = None
    network_subscription: Bool = False
    optimized_acknowledge: Bool = False
    no_range_acks: Bool = False
    network_consumer_path: Annotated[Array[ConsumerId], Since(4)] = None


@structure(6)
class ProducerInfo(Command):
    """Producer; without ``destination`` each message names its own."""

    producer_id: Cached[ProducerId] = None
    destination: Cached[Destination] = None
    broker_path: Array[BrokerId] = None
    dispatch_async: Annotated[Bool, Since(2)] = False
    window_size: Annotated[Int, Since(3)] = 0


class TransactionType(IntEnum):
    """TransactionInfo's constants."""

    BEGIN = 0
    PREPARE = 1
    COMMIT_ONE_PHASE = 2
    COMMIT_TWO_PHASE = 3
    ROLLBACK = 4
    RECOVER = 5
    FORGET = 6
    END = 7


@structure(7)
class TransactionInfo(Command):
    """``type`` is a TransactionType, or another number of a client."""

    connection_id: Cached[ConnectionId] = None
    transaction_id: Cached[LocalTransactionId | XaTransactionId] = None
    type: Byte = 0


class DestinationOperation(IntEnum):
    """DestinationInfo's constants."""

    ADD = 0
    REMOVE = 1


@structure(8)
class DestinationInfo(Command):
    connection_id: Cached[ConnectionId] = None
    destination: Cached[Destination] = None
    operation_type: Byte = 0
    timeout: Long = 0
    broker_path: Array[BrokerId] = None


@structure(9)
class RemoveSubscriptionInfo(Command):
    connection_id: Cached[ConnectionId] = None
    subscription_name: Text = None
    client_id: Text = None


@structure(10)
class KeepAliveInfo(Command):
    pass


@structure(11)
class ShutdownInfo(Command):
    pass


@structure(12)
class RemoveInfo(Command):
    object_id: Cached[ConnectionId | SessionId | ConsumerId | ProducerId] = None
    last_delivered_sequence_id: Annotated[Long, Since(5)] = -2  # RemoveInfo: unknown


@structure(14)
class ControlCommand(Command):
    command: Text = None


@structure(15)
class FlushCommand(Command):
    pass


@structure(16)
class ConnectionError(Command):
    """Something failed that no response reports; the connection continues."""

    exception: Thrown = None
    connection_id: Nested[ConnectionId] = None


@structure(17)
class ConsumerControl(Command):
    destination: Annotated[Nested[Destination], Since(6)] = None
    close: Bool = False
    consumer_id: Nested[ConsumerId] = None
    prefetch: Int = 0
    flush: Annotated[Bool, Since(2)] = False
    start: Annotated[Bool, Since(2)] = False
    stop: Annotated[Bool, Since(2)] = False


@structure(18)
class ConnectionControl(Command):
    close: Bool = False
    exit: Bool = False
    fault_tolerant: Bool = False
    resume: Bool = False
    suspend: Bool = False
    connected_brokers: Annotated[Text, Since(6)] = ""
    reconnect_to: Annotated[Text, Since(6)] = ""
    rebalance_connection: Annotated[Bool, Since(6)] = False
    token: Annotated[Bytes, Since(8)] = None


@structure(65)
class ReplayCommand(Command):
    first_nak_number: Int = 0
    last_nak_number: Int = 0


# ---- messages


@dataclass(slots=True)
class WireMessage(Command):
    """A message as it is in a frame, with body and properties as bytes.

    Used only for messages in another form than the store's; a message in the store's form is passed on unchanged.
    """

    producer_id: Cached[ProducerId] = None
    destination: Cached[Destination] = None
    transaction_id: Cached[LocalTransactionId | XaTransactionId] = None
    original_destination: Cached[Destination] = None
    message_id: Nested[MessageId] = None
    original_transaction_id: Cached[LocalTransactionId | XaTransactionId] = None
    group_id: Text = None
    group_sequence: Int = 0
    correlation_id: Text = None
    persistent: Bool = False
    expiration: Long = 0
    priority: Byte = 0
    reply_to: Nested[Destination] = None
    timestamp: Long = 0
    type: Text = None
    content: Bytes = None
    marshalled_properties: Bytes = None
    data_structure: Nested[object] = None
    target_consumer_id: Cached[ConsumerId] = None
    compressed: Bool = False
    redelivery_counter: Int = 0
    broker_path: Array[BrokerId] = None
    arrival: Long = 0
    user_id: Text = None
    received_by_df_bridge: Bool = False
    droppable: Annotated[Bool, Since(2)] = False
    cluster: Annotated[Array[BrokerId], Since(3)] = None
    broker_in_time: Annotated[Long, Since(3)] = 0
    broker_out_time: Annotated[Long, Since(3)] = 0
    jmsx_group_first_for_consumer: Annotated[Bool, Since(10)] = False


@structure(BodyKind.NONE)
class ActiveMQMessage(WireMessage):
    pass


@structure(BodyKind.BYTES)
class ActiveMQBytesMessage(WireMessage):
    pass


@structure(BodyKind.MAP)
class ActiveMQMapMessage(WireMessage):
    pass


@structure(BodyKind.OBJECT)
class ActiveMQObjectMessage(WireMessage):
    pass


@structure(BodyKind.STREAM)
class ActiveMQStreamMessage(WireMessage):
    pass


@structure(BodyKind.TEXT)
class ActiveMQTextMessage(WireMessage):
    pass


@structure(BodyKind.BLOB, since=3)
class ActiveMQBlobMessage(WireMessage):
    remote_blob_url: Text = None
    mime_type: Text = None
    deleted_by_broker: Bool = False


@structure(19, since=3)
class ProducerAck(Command):
    producer_id: Nested[ProducerId] = None
    size: Int = 0


@structure(20, since=2)
class MessagePull(Command):
    """``timeout``: milliseconds, 0 waits forever, -1 not at all."""

    consumer_id: Cached[ConsumerId] = None
    destination: Cached[Destination] = None
    timeout: Long = 0
    correlation_id: Annotated[Text, Since(3)] = None
    message_id: Annotated[Nested[MessageId], Since(3)] = None


@structure(21)
class MessageDispatch(Command):
    """Dispatch of a message; without ``message`` a pull found nothing, or a browser has seen all."""

    consumer_id: Cached[ConsumerId] = None
    destination: Cached[Destination] = None
    message: Nested[WireMessage] = None
    redelivery_counter: Int = 0


@structure(22)
class MessageAck(Command):
    """``ack_type`` is an AckType, or another number of a client."""

    destination: Cached[Destination] = None
    transaction_id: Cached[LocalTransactionId | XaTransactionId] = None
    consumer_id: Cached[ConsumerId] = None
    ack_type: Byte = 0
    first_message_id: Nested[MessageId] = None
    last_message_id: Nested[MessageId] = None
    message_count: Int = 0
    poison_cause: Annotated[Thrown, Since(7)] = None


@structure(90)
class MessageDispatchNotification(Command):
    consumer_id: Cached[ConsumerId] = None
    destination: Cached[Destination] = None
    delivery_sequence_id: Long = 0
    message_id: Nested[MessageId] = None


# ---- responses


@structure(30)
class Response(Command):
    correlation_id: Int = 0


@structure(31)
class ExceptionResponse(Response):
    exception: Thrown = None


@structure(32)
class DataResponse(Response):
    data: Nested[object] = None


@structure(33)
class DataArrayResponse(Response):
    data: Array[object] = ()


@structure(34)
class IntegerResponse(Response):
    result: Int = 0


# ---- between brokers


@structure(40)
class DiscoveryEvent:
    service_name: Text = None
    broker_name: Text = None


@structure(55)
class SubscriptionInfo:
    client_id: Text = None
    destination: Cached[Destination] = None
    selector: Text = None
    subscription_name: Text = None
    subscribed_destination: Annotated[Nested[Destination], Since(3)] = None
    no_local: Annotated[Bool, Since(11)] = False


@structure(92, since=12)
class BrokerSubscriptionInfo(Command):
    broker_id: Nested[BrokerId] = None
    broker_name: Text = None
    subscription_infos: Array[ConsumerInfo] = None
