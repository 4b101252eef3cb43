"""Parameters and bodies of requests of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandemmq.broker.admin.api.endpoints import RequestFields
from tandemmq.broker.admin.api.message_work import IDS_MAX, Choice

#: Limit of the rows of a page.
LIMIT_MAX = 1_000
#: Limit of a selector. Selectors of STOMP and JMS clients are shorter in practice.
SELECTOR_CHARACTERS_MAX = 10_000
#: Limit of the name of a destination (broker.core.names).
NAME_CHARACTERS_MAX = 512
WAIT_SECONDS_MAX = 30.0

Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Selector = Annotated[str, Field(min_length=1, max_length=SELECTOR_CHARACTERS_MAX)]
Ids = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1_000)], ...], Field(max_length=IDS_MAX)]
Count = Annotated[int, Field(ge=1, le=1 << 53)]
Wait = Annotated[float, Field(ge=0, le=WAIT_SECONDS_MAX)]


class Paged(RequestFields):
    """A page of a list: ``limit`` rows after the cursor ``after``."""

    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 100
    after: Annotated[str, Field(max_length=2_000)] = ""
    filter: Annotated[str, Field(max_length=NAME_CHARACTERS_MAX)] | None = None


class PagedDestinations(Paged):
    """A page of destinations. ``dead_letters``: only dead letter queues."""

    dead_letters: bool = False


class PagedOf(Paged):
    """A page of rows of one destination, if ``queue`` or ``topic`` is given."""

    queue: Name | None = None
    topic: Name | None = None


class PagedConsumers(PagedOf):
    """A page of consumers. ``slow``: only consumers that receive nothing although messages wait for them."""

    slow: bool = False


class Browsing(RequestFields):
    """A page of the messages of a queue, after the first ``after`` messages."""

    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 50
    after: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    selector: Selector | None = None


class Reading(RequestFields):
    """Query for one message, searched after the first ``after`` messages."""

    after: Annotated[int, Field(ge=0, le=1 << 53)] = 0


class Last(RequestFields):
    """Query for the ``last`` events, or for the last events before the event with the number ``before``."""

    last: Annotated[int, Field(ge=1, le=10_000)] = 100
    before: Annotated[int, Field(ge=-999_999_999, le=999_999_999)] | None = None


class Creation(RequestFields):
    """A new destination."""

    kind: Literal["queue", "topic"]
    name: Name


class Waiting(RequestFields):
    """Body of a request that begins a task. ``wait``: limit of the seconds until the answer. A longer task continues,
    and the answer is 202 with the task's id."""

    wait: Wait = 10.0


class Pausing(RequestFields):
    """Sides of a destination that are paused or resumed: consumers, producers or both."""

    consumers: bool = True
    producers: bool = False


class Chosen(Waiting):
    """The messages that match both ``ids`` and ``selector``, at most ``limit``, the oldest first. ``all``: required to
    choose all messages."""

    ids: Ids = ()
    selector: Selector | None = None
    limit: Count | None = None
    all: bool = False

    @property
    def choice(self) -> Choice:
        return Choice(self.selector, self.ids, self.limit)

    @property
    def is_choice(self) -> bool:
        """True if the request chooses messages."""
        return bool(self.ids or self.selector is not None or self.limit is not None or self.all)


class Target(Chosen):
    """A choice of messages, and the destination ``to`` for them."""

    to: Name
    to_kind: Literal["queue", "topic"] = "queue"


class Retrying(Chosen):
    """Dead letters to retry. ``canary``: retry one, then ten, then all; stop if one becomes a dead letter again or is
    not consumed within ``canary_wait`` seconds. ``rate``: messages per second. ``dry_run``: only count."""

    dry_run: bool = False
    rate: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    canary: bool = False
    canary_wait: Annotated[float, Field(gt=0, le=3_600)] = 30.0


class Login(RequestFields):
    """A user with password, or the admin token."""

    login: Annotated[str, Field(max_length=1_024)] = ""
    passcode: Annotated[str, Field(max_length=1_024)] = ""
    token: Annotated[str, Field(max_length=128)] = ""


class Successor(RequestFields):
    """Query of a handover. ``to``: in a replicated set, the next master."""

    to: Name | None = None


class Backup(Waiting):
    """Body for a new backup. ``name``: the new directory below ``admin.backup_directory``."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
