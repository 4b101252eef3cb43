"""Copy of settings by name, from the section that declares them to the dataclass of the part that reads them.

Default, unit and meaning of a setting are in its section, in `config`. The part that reads it does not import `config`:
it has a dataclass with a field of the same name (`x_seconds` may be `x`). A `SettingsCopy` joins the two.

    in the section                          in the dataclass
    a time, in milliseconds                 float: in seconds; int: in milliseconds
    the number of `config.section.Unit`       None where the field may be None; else infinity
        that means "no such bound"
    anything else                           the same value

A field without its namesake is an error when the module that makes the copy is imported: `SettingsMismatch`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic.fields import FieldInfo

from tandemmq.config.section import Section, Unit, unit_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SECONDS: Final = "_seconds"
NO_UNIT: Final = Unit("")
NONE: Final[Mapping[str, str]] = MappingProxyType({})

Source = TypeVar("Source", bound=Section)
Target = TypeVar("Target", bound="DataclassInstance")


class SettingsMismatch(TypeError):
    """A section and a dataclass do not fit; the message names each field that differs."""


class SettingsCopy(Generic[Source, Target]):
    """Makes a ``target`` of a ``section``.

    ``computed``: fields of the target that the caller gives, with the reason why the section's value alone is not
    enough. ``constant``: fields of the target that no setting changes: they keep their default. ``elsewhere``: keys of
    the section that the target does not use, with the module that reads them. ``copied``: the rule of each other field.
    """

    def __init__(
        self,
        section: type[Source],
        target: type[Target],
        *,
        computed: Mapping[str, str] = NONE,
        constant: Collection[str] = (),
        elsewhere: Mapping[str, str] = NONE,
    ) -> None:
        self.section: Final = section
        self.target: Final = target
        keys = section.model_fields
        hints = get_type_hints(target)
        kinds = {field.name: _kinds(hints[field.name]) for field in fields(target)}
        self._computed: Final = {name: kinds[name] for name in computed if name in kinds}
        self.copied: Final[dict[str, _Copied]] = {}

        key_of = {name: name if name in keys else name.removesuffix(SECONDS) for name in kinds if name not in constant}
        taken = {*key_of.values(), *elsewhere}
        wrong = [f"{target.__name__} has no field {name}" for name in (*computed, *constant) if name not in kinds]
        wrong += [f"{section.__name__} has no key {key}" for key in elsewhere if key not in keys]
        wrong += [f"{section.__name__}.{key} has no namesake in {target.__name__}" for key in keys if key not in taken]
        for name, key in key_of.items():
            if name in computed:
                continue
            if key not in keys or key in elsewhere:
                wrong.append(f"{target.__name__}.{name} has no namesake in {section.__name__}")
                continue
            copied = _Copied.of(key, keys[key], kinds[name])
            if copied is None:
                wrong.append(f"{section.__name__}.{key} has another type than {target.__name__}.{name}")
            else:
                self.copied[name] = copied
        if wrong:
            raise SettingsMismatch("; ".join(wrong))

    def __call__(self, values: Source, **computed: object) -> Target:
        """Return a target with the settings in ``values``, and with the computed values."""
        assert computed.keys() == self._computed.keys(), f"computed: {list(self._computed)}, not {list(computed)}"
        for name, value in computed.items():
            assert isinstance(value, tuple(self._computed[name])), f"{name} cannot be {value!r}"
        copied = {name: one.converted(getattr(values, one.key)) for name, one in self.copied.items()}
        return self.target(**copied, **computed)


class _Copied(NamedTuple):
    """Copy rule of one value. ``unlimited``: the number that means "no such bound", which becomes ``no_bound``."""

    key: str
    unlimited: int | None
    no_bound: float | None
    is_in_seconds: bool

    @classmethod
    def of(cls, key: str, field: FieldInfo, target: frozenset[Any]) -> _Copied | None:
        """Return the rule; None: the key allows values that the ``target`` does not allow."""
        unit, source = unit_of(field) or NO_UNIT, _kinds(field.annotation)
        if unit.unlimited is not None:
            source |= {NoneType if NoneType in target else float}
        if not source <= target:
            return None
        return cls(key, unit.unlimited, None if NoneType in target else math.inf, unit.is_time and float in target)

    def converted(self, value: Any) -> Any:
        if value is None or value == self.unlimited:
            return self.no_bound
        return value / 1000 if self.is_in_seconds else value


def _kinds(annotation: Any) -> frozenset[Any]:
    """Return the classes of the values that an annotation allows. An int may stand for a float."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin is Literal:
        return frozenset(map(type, get_args(annotation)))
    if origin in (Union, UnionType):
        return frozenset().union(*map(_kinds, get_args(annotation)))
    return frozenset({float, int} if annotation is float else {origin or annotation})
