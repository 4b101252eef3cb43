"""The table [mqtt]: what clients of MQTT may have. What a connector allows stands in the options of its URI."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tandemmq.config.section import AnyCase, Section
from tandemmq.config.units import Bytes, Count, Milliseconds, MillisecondsOrNever

#: Both are two bytes wide (MQTT 5, 3.2.2.3).
TWO_BYTES_MAX: Final = 65_535


class MqttSettings(Section):
    max_session_expiry_interval: Milliseconds | None = None
    """So long a session is kept at most while its client is away. Default: as long as the client asks; of MQTT 3.1.1
    for ever."""
    retained_messages_max: Count = 100_000
    """So many topics may have a retained message; of one more the message is sent and not retained."""
    retained_bytes_max: Bytes = 64 << 20
    """So many bytes retained messages may have, together; with all that they take in memory a quarter of
    `broker.memory_limit` at most."""
    receive_maximum: Count = Field(1_024, ge=1, le=TWO_BYTES_MAX)
    """So many messages of QoS 1 and 2 a client of MQTT 5 may send that are not confirmed yet."""
    topic_alias_maximum: Count = Field(16, ge=0, le=TWO_BYTES_MAX)
    """So many topics a client of MQTT 5 may abbreviate; 0: none."""
    refused_publish: Annotated[Literal["close", "acknowledge"], AnyCase] = "close"
    """What becomes of a message of a client of MQTT 3.1 or 3.1.1 that is refused, for example for want of rights.
    `close`: its connection ends, and the client knows that something is wrong. `acknowledge`: it is dropped, and
    confirmed as in ActiveMQ, so that a client that sends it again and again stays. The log has a line in both cases."""
    sys_interval: MillisecondsOrNever = 10_000
    """So often figures are published on topics below `$SYS/`; 0: never."""
