"""Base of every table of settings.

The meaning of a key is the text below its field. A validator raises ValueError with the expected form, in the
operator's words.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator


class Section(BaseModel):
    """Table of the file. Values do not change while the broker runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class Subject(Section):
    """Table about one subject: exactly one of the keys ``kinds`` is set."""

    kinds: ClassVar[tuple[str, ...]] = ("queue", "topic")

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if len(self._given()) != 1:
            raise ValueError(f"one of {', '.join(self.kinds[:-1])} and {self.kinds[-1]}")
        return self

    @property
    def subject(self) -> tuple[str, str]:
        """Kind (the name of the key) and pattern. Without a pattern: the one that matches all."""
        (kind,) = self._given()
        value = getattr(self, kind)
        return kind, value if isinstance(value, str) else ">"

    def _given(self) -> list[str]:
        return [kind for kind in self.kinds if getattr(self, kind) not in (None, False)]


@cache
def meanings(table: type[Section]) -> dict[str, str]:
    """Return the meaning of each key of a table, read from its source on demand: a starting broker needs none."""
    found: dict[str, str] = {}
    for part in (part for part in reversed(table.__mro__) if issubclass(part, Section)):
        (definition,) = ast.parse(inspect.getsource(part)).body
        assert isinstance(definition, ast.ClassDef), "a table is a class"
        for pair in pairwise(definition.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[key] = " ".join(text.split())
    return found


def section_of(annotation: Any) -> type[Section] | None:
    """Return the table of a field, also of an optional one; None: the field is a value."""
    kinds = [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def listed(value: object, separator: str = ",") -> object:
    """Convert to a list: ActiveMQ's form, and that of the environment and --set, is one text with commas."""
    return [part.strip() for part in value.split(separator) if part.strip()] if isinstance(value, str) else value


def without(characters: str, expected: str, *, may_be_empty: bool = False) -> AfterValidator:
    """Make a validator of a text without blanks and without these characters."""

    def validate(text: str) -> str:
        if not (text or may_be_empty) or any(each.isspace() or each in characters for each in text):
            raise ValueError(expected)
        return text

    return AfterValidator(validate)


def _path(path: str) -> str:
    if not path or "\0" in path:
        raise ValueError("a path")
    return path


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Listed = BeforeValidator(listed)
Path = Annotated[str, AfterValidator(_path)]
#: For a Literal: ActiveMQ writes its enumerations in capitals.
AnyCase = BeforeValidator(_lower)
