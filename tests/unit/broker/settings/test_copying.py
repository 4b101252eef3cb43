"""Settings are copied by name. How many tables are not copied is counted in tests/unit/test_lists.py."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from tandemmq.broker.settings.copying import SettingsCopy, SettingsMismatch
from tandemmq.config.section import Bytes, BytesOrUnlimited, Count, Milliseconds, MillisecondsOrNever, Section, Unit
from tests.support.lists import copies

#: Defaults of a dataclass that are not those of its section, and why.
OTHER_DEFAULTS = {
    ("RedeliveryPolicy", "initial_redelivery_delay"): "without the table a message comes again at once",
    ("RedeliveryPolicy", "redelivery_delay"): "the same",
}


@pytest.mark.parametrize("copy", copies(), ids=lambda copy: copy.target.__name__)
def test_defaults_in_two_places_are_equal(copy: SettingsCopy[Any, Any]) -> None:
    usual = {field.name: field.default for field in dataclasses.fields(copy.target)}
    others = {name for target, name in OTHER_DEFAULTS if target == copy.target.__name__}
    keys = copy.section.model_fields
    for name, one in copy.copied.items():
        value = one.converted(keys[one.key].get_default(call_default_factory=True))
        if usual[name] is not dataclasses.MISSING:
            assert (value == usual[name]) == (name not in others), f"{copy.target.__name__}.{name}"
            assert type(value) is type(usual[name]), f"{copy.target.__name__}.{name}"


# ---- effects of a copy


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


def test_computed_values_must_be_given_and_of_their_type() -> None:
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
def test_a_field_without_a_namesake_or_of_another_type_is_named(target: type[Any], named: str) -> None:
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
