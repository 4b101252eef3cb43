"""Settings are copied by name, and each has its place on both sides."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import Field

from tandemmq.broker.ha import locks
from tandemmq.broker.security import setup
from tandemmq.broker.settings import engine, policies, store
from tandemmq.broker.settings.copying import SettingsCopy, SettingsMismatch
from tandemmq.config.section import Section
from tandemmq.config.settings import Settings
from tandemmq.config.units import Bytes, BytesOrUnlimited, Count, Milliseconds, MillisecondsOrNever, Unit

COPIES: list[SettingsCopy[Any, Any]] = [
    value
    for module in (engine, locks, policies, setup, store)
    for value in vars(module).values()
    if isinstance(value, SettingsCopy)
]

#: Sections of which nothing is copied by name, and why.
NOT_COPIED = {
    "Settings": "it holds the sections",
    "ConnectorSettings": "a URI; what its options become: test_connectors",
    "AdminSettings": "a URI and names, read as they are",
    "IOExceptionHandlerSettings": "it has no keys",
    "SecuritySettings": "files, users and rights, not values: test_setup",
    "AuthorizationSettings": "rights, not values: test_setup",
    "PendingLimitSettings": "two fields of the policy of a destination: test_policies",
    "FilteredStoreSettings": "laid over [store] first (StoreSettings.of)",
    "ReplicationSettings": "read as it is; its secrets: test_replication",
    "VirtualDestinationSettings": "a rule of one of three kinds: tests/unit/config/test_virtual_destinations",
    "ForwardSettings": "the same",
    "LoggingSettings": "read as it is where the log is set up",
    "TracingSettings": "two values, given where they are needed (wiring)",
    "StatementsSettings": "handed to the kind of lock as they are (LockerSettings.kind_options)",
    "ZooKeeperTable": "the same",
    "KubernetesTable": "the same",
    "MqttSettings": "options of its connectors: test_connectors",
    "WebSocketSettings": "options of its connectors: test_connectors",
    "BridgeSettings": "made into a plan, with files that are read: tests/unit/broker/bridges/test_setup",
    "BridgeTlsSettings": "the same",
    "BridgeTopicSettings": "the same",
}

#: Defaults of a dataclass that are not those of its section, and why.
OTHER_DEFAULTS = {
    ("RedeliveryPolicy", "initial_redelivery_delay"): "without the table a message comes again at once",
    ("RedeliveryPolicy", "redelivery_delay"): "the same",
}


def sections(annotation: Any) -> Iterator[type[Section]]:
    """All tables of settings below one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
        for field in annotation.model_fields.values():
            yield from sections(field.annotation)
    for inner in get_args(annotation):
        yield from sections(inner)


def test_every_section_is_copied_or_there_is_a_reason_why_not() -> None:
    found = set(sections(Settings))
    copied = {section for section in found if any(issubclass(section, copy.section) for copy in COPIES)}
    # What a store is told is a part of both tables.
    not_copied = {section.__name__ for section in found - copied} | {"FilteredStoreSettings"}
    assert not_copied == set(NOT_COPIED)
    assert {copy.section for copy in COPIES} <= {base for section in found for base in section.__mro__}


@pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.target.__name__)
def test_where_a_default_stands_twice_both_are_the_same(copy: SettingsCopy[Any, Any]) -> None:
    usual = {field.name: field.default for field in dataclasses.fields(copy.target)}
    others = {name for target, name in OTHER_DEFAULTS if target == copy.target.__name__}
    for name, value in copy.defaults().items():
        if usual[name] is not dataclasses.MISSING:
            assert (value == usual[name]) == (name not in others), f"{copy.target.__name__}.{name}"
            assert type(value) is type(usual[name]), f"{copy.target.__name__}.{name}"


# ---- what copying does


class Table(Section):
    text: Literal["a", "b"] = "a"
    interval: MillisecondsOrNever = 1_500
    delay: Milliseconds = 250
    wait: Milliseconds = 250
    pause: Milliseconds | None = None
    size: Bytes = 7
    limit: BytesOrUnlimited = 0
    often: Annotated[int, Unit("", unlimited=-1)] = -1
    length: Count | None = Field(None)
    name: str = "n"


@dataclasses.dataclass(frozen=True)
class Values:
    text: str
    interval: float
    delay: float
    wait_seconds: float
    pause: int | None
    size: int
    limit: int | None
    often: float
    length: int


WHY = {"length": "its default depends on the size"}
COPY = SettingsCopy(Table, Values, computed=WHY, elsewhere={"name": "here"})


def test_values_are_copied_by_name_and_unit() -> None:
    table = Table(text="b", interval=0, delay="2s", pause="3s", size="1kb", limit="2kb", often=4)
    assert COPY(table, length=9) == Values("b", math.inf, 2.0, 0.25, 3_000, 1024, 2048, 4, 9)
    assert COPY(Table(), length=9) == Values("a", 1.5, 0.25, 0.25, None, 7, None, math.inf, 9)


def test_what_is_computed_must_be_given_and_of_its_type() -> None:
    with pytest.raises(AssertionError, match="length"):
        COPY(Table())
    with pytest.raises(AssertionError, match="length cannot be 'long'"):
        COPY(Table(), length="long")


class Small(Section):
    size: Bytes = 7
    interval: MillisecondsOrNever = 0


@dataclasses.dataclass
class Fitting:
    size: int
    interval: float


@dataclasses.dataclass
class Less:
    size: int


@dataclasses.dataclass
class More(Fitting):
    other: int = 0


@dataclasses.dataclass
class Different:
    size: str
    interval: float


@dataclasses.dataclass
class WithoutNever:
    size: int
    interval: int


@pytest.mark.parametrize(
    ("target", "named"),
    [(Less, "Small.interval"), (More, "More.other"), (Different, "Small.size"), (WithoutNever, "Small.interval")],
)
def test_what_has_no_namesake_or_another_type_is_named(target: type[Any], named: str) -> None:
    SettingsCopy(Small, Fitting)
    with pytest.raises(SettingsMismatch, match=named):
        SettingsCopy(Small, target)


@pytest.mark.parametrize(
    ("exceptions", "named"),
    [
        ({"computed": {"gone": "why"}}, "gone"),
        ({"constant": ("gone",)}, "gone"),
        ({"elsewhere": {"gone": "why"}}, "gone"),
        ({"elsewhere": {"size": "why"}}, "Fitting.size"),
        ({"constant": ("size",)}, "Small.size"),
    ],
)
def test_an_exception_that_is_none_is_named(exceptions: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsMismatch, match=named):
        SettingsCopy(Small, Fitting, **exceptions)
