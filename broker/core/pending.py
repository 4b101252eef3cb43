"""A message that waits for its time: the copy of it that is stored until then, and what it becomes. Pure.

The copy lies in the queue PENDING, which no client can reach, under its own id, with the place that it is meant for as
its original destination. Everything else about its time stands in properties beside those that ask for it, so the
journal alone tells, after a crash or on another broker, when it is due and how often it is still to come. ActiveMQ
opens such a journal and finds a queue of that name.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.core.schedule import CRON, JOB_ID, PROPERTIES, Schedule
from store.records.message import Destination, DestinationKind, Message, PropertyValue
from store.records.properties import Long

PENDING = Destination(DestinationKind.QUEUE, "ActiveMQ.Scheduler.Pending")
_DUE = "tandemmqScheduledTime"
_LEFT = "tandemmqScheduledLeft"
_JOB = "tandemmqScheduledJob"
_OURS = (_DUE, _LEFT, _JOB)


class Due(NamedTuple):
    """When a pending message is due, how many repetitions are left after that, and the name of its job."""

    time: int
    left: int
    job: str


def pending(message: Message, due: Due) -> Message:
    """The copy of what a client sent that waits until ``due``."""
    copy = _copy(message, dict(message.properties or {}))
    copy.destination = PENDING
    copy.original_destination = message.destination
    _set_due(copy, due)
    return copy


def again(waiting: Message, due: Due, message_id: str) -> Message:
    """``waiting``, when it is due once more."""
    copy = _copy(waiting, dict(waiting.properties or {}))
    copy.message_id = message_id
    _set_due(copy, due)
    return copy


def run_of(waiting: Message, due: Due, message_id: str) -> Message:
    """The run of repetitions that a minute of a cron entry begins: it waits on its own."""
    copy = again(waiting, due, message_id)
    assert copy.properties is not None, "it says when it is due"
    copy.properties.pop(CRON, None)
    return copy


def due_of(waiting: Message) -> Due:
    """When it is due. What does not say so (nobody wrote it but we) is due at once, and for the last time."""
    properties = waiting.properties or {}
    time, left, job = (properties.get(name) for name in _OURS)
    return Due(
        time if isinstance(time, int) else 0,
        left if isinstance(left, int) else 0,
        job if isinstance(job, str) else waiting.message_id,
    )


def occurrence(waiting: Message, schedule: Schedule | None, now: int, message_id: str) -> Message:
    """What is sent when its time has come (SchedulerBroker.scheduledJob).

    What comes once keeps its id, for somebody may wait for an answer to it; what comes several times gets
    ``message_id``. Its time to live begins now.
    """
    properties = dict(waiting.properties or {})
    for name in (*PROPERTIES, *_OURS):
        properties.pop(name, None)
    properties[JOB_ID] = due_of(waiting).job
    message = _copy(waiting, properties)
    message.destination = waiting.original_destination or waiting.destination
    message.original_destination = None
    if schedule is not None and (schedule.repeat or schedule.cron is not None):
        message.message_id = message_id
    if message.timestamp > 0 and message.expiration > 0:
        renewed = message.expiration - message.timestamp + now
        if renewed > message.expiration:
            message.expiration, message.timestamp = renewed, now
    return message


def shown(waiting: Message, reply_to: Destination, message_id: str) -> Message:
    """What a client is shown that asks for what is pending (SchedulerBroker.sendScheduledJob)."""
    properties = {name: value for name, value in (waiting.properties or {}).items() if name not in _OURS}
    properties[JOB_ID] = due_of(waiting).job
    message = _copy(waiting, properties)
    message.destination = reply_to
    message.original_destination = waiting.original_destination
    message.message_id = message_id
    message.persistent = False
    message.type = "Advisory"
    return message


def _set_due(copy: Message, due: Due) -> None:
    assert copy.properties is not None, "a copy has properties of its own"
    copy.properties |= {_DUE: Long(due.time), _LEFT: due.left, _JOB: due.job}


def _copy(message: Message, properties: dict[str, PropertyValue]) -> Message:
    return Message(
        message.destination,
        message.message_id,
        message.body,
        message.body_kind,
        persistent=message.persistent,
        priority=message.priority,
        expiration=message.expiration,
        timestamp=message.timestamp,
        properties=properties,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        type=message.type,
        group_id=message.group_id,
        group_sequence=message.group_sequence,
        user_id=message.user_id,
        original_destination=message.original_destination,
    )
