"""What every table of settings is made of."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A table of the file. Values do not change while the broker runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


def section_of(annotation: Any) -> type[Section] | None:
    """The table that a field is, also one that may be left out; None: it is a value."""
    kinds = [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def wrong(expected: str) -> PydanticCustomError:
    """To be raised by a validator: what was expected, in the operator's words."""
    return PydanticCustomError("expected", "{expected}", {"expected": expected})


def _path(path: str) -> str:
    if not path or "\0" in path:
        raise wrong("a path")
    return path


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Path = Annotated[str, AfterValidator(_path)]
#: Before a Literal: ActiveMQ writes its enumerations in capitals.
AnyCase = BeforeValidator(_lower)
