"""Delayed messages: the copy that is stored until the due time, and the message that is sent then. Pure.

The copy is in the queue PENDING, which no client can reach. It keeps the id of the client's message, and its original
destination is the target. The broker stores all other facts about the schedule as properties beside those of the
client. So the journal alone shows, after a crash or on another broker, when the message is due and how many repetitions
remain. ActiveMQ opens such a journal and finds a queue of that name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tandemmq.broker.core.commands import refusal
from tandemmq.broker.core.scheduling.schedule import CRON, JOB_ID, PROPERTIES, Schedule
from tandemmq.store.records.altered import altered
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.message import TIME_MAX, Destination, DestinationKind, Message, PropertyValue
from tandemmq.store.records.properties import Long

PENDING = Destination(DestinationKind.QUEUE, "ActiveMQ.Scheduler.Pending")
_DUE = "tandemmqScheduledTime"
_REMAINING = "tandemmqScheduledLeft"
_JOB = "tandemmqScheduledJob"
_USER = "tandemmqScheduledUser"
_OWN_PROPERTIES = (_DUE, _REMAINING, _JOB, _USER)


class Due(NamedTuple):
    """Due time of a pending message, the repetitions left after that, the name of its job, and its user (None:
    unknown)."""

    time: int
    left: int
    job: str
    user: str | None = None


def pending(message: Message, due: Due) -> Message:
    """Return the copy of a client's message that waits until ``due``. Raises a ClientError (not fatal) if it cannot be
    stored."""
    return _new(
        message,
        destination=PENDING,
        original_destination=message.destination,
        properties_added=_job_properties(due),
        properties_removed=_OWN_PROPERTIES,  # only the broker may set the user
    )


def again(waiting: Message, due: Due, message_id: str) -> Message:
    """Return the copy of ``waiting`` for its next due time."""
    return _new(waiting, message_id=message_id, properties_added=_job_properties(due))


def run_of(waiting: Message, due: Due, message_id: str) -> Message:
    """Return the copy for the repetitions that begin at one time of a cron entry. It waits independently of
    ``waiting``."""
    return _new(waiting, message_id=message_id, properties_added=_job_properties(due), properties_removed=(CRON,))


def due_of(waiting: Message) -> Due:
    """Return the due time of the message. A message without these properties is due at once, and has no repetitions."""
    properties = waiting.properties or {}
    time, left, job, user = (properties.get(name) for name in _OWN_PROPERTIES)
    return Due(
        time if isinstance(time, int) else 0,
        left if isinstance(left, int) else 0,
        job if isinstance(job, str) else waiting.message_id,
        user if isinstance(user, str) else None,
    )


def occurrence(waiting: Message, schedule: Schedule | None, now: int, message_id: str) -> Message:
    """Return the message that is sent at the due time (SchedulerBroker.scheduledJob).

    A message that is sent once keeps its id, since a client may wait for an answer to it; a repeated message gets
    ``message_id``. Its time to live begins now.
    """
    expiration = timestamp = None
    if waiting.timestamp > 0 and waiting.expiration > 0:
        renewed = min(waiting.expiration - waiting.timestamp + now, TIME_MAX)
        if renewed > waiting.expiration:
            expiration, timestamp = renewed, now
    is_repeated = schedule is not None and (schedule.repeat or schedule.cron is not None)
    return _new(
        waiting,
        destination=waiting.original_destination or waiting.destination,
        message_id=message_id if is_repeated else None,
        expiration=expiration,
        timestamp=timestamp,
        properties_added={JOB_ID: due_of(waiting).job},
        properties_removed=(*PROPERTIES, *_OWN_PROPERTIES),
        is_original=True,
    )


def shown(waiting: Message, reply_to: Destination, message_id: str) -> Message:
    """Return the message for a client that browses the pending ones (SchedulerBroker.sendScheduledJob)."""
    return _new(
        waiting,
        destination=reply_to,
        message_id=message_id,
        persistent=False,
        type="Advisory",
        properties_added={JOB_ID: due_of(waiting).job},
        properties_removed=_OWN_PROPERTIES,
    )


def _job_properties(due: Due) -> dict[str, PropertyValue]:
    properties: dict[str, PropertyValue] = {_DUE: Long(due.time), _REMAINING: due.left, _JOB: due.job}
    return properties if due.user is None else {**properties, _USER: due.user}


def _new(message: Message, **changes: Any) -> Message:
    """Return a copy without a broker sequence and without redeliveries. It has the same body (``altered``)."""
    try:
        return altered(message, broker_sequence=0, redelivery_counter=0, **changes)
    except Unencodable as error:
        raise refusal(f"The message cannot be kept: {error}") from error
