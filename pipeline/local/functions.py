"""The column functions of Spark that the jobs use, in DuckDB's SQL.

Arguments are those of ``pyspark.sql.functions``: a string is the name of a column, except where Spark takes a value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tandemmq.pipeline.local.column import Case, Column, Descending, column, literal

if TYPE_CHECKING:
    from tandemmq.pipeline.local.frame import DataFrame

Given = str | Column
_Same = TypeVar("_Same", bound="DataFrame")

_PYTHON_TYPES: Final[dict[object, str]] = {str: "VARCHAR", int: "BIGINT", "str": "VARCHAR", "int": "BIGINT"}
_DDL_TYPES: Final = {"ARRAY<STRING>": "VARCHAR[]"}


def _call(function: str, *given: Given, name: str | None = None) -> Column:
    return Column(f"{function}({', '.join(column(each).sql for each in given)})", name)


def _long(call: str) -> Column:
    """Cast a count or a sum to BIGINT, because DuckDB's types are wider than Spark's."""
    return Column(f"CAST({call} AS BIGINT)", None, call)


# ---- plain


def col(name: str) -> Column:
    return column(name)


def lit(value: object) -> Column:
    if isinstance(value, int) and not isinstance(value, bool):  # a number in GROUP BY would be the position of a column
        return Column(f"CAST({value} AS {'INTEGER' if abs(value) < 1 << 31 else 'BIGINT'})")
    return Column(literal(value))


def when(condition: Column, value: object) -> Case:
    return Case(f"WHEN {condition.sql} THEN {literal(value)}")


def desc(given: Given) -> Column:
    return Descending(column(given).sql)


def coalesce(*given: Given) -> Column:
    return _call("coalesce", *given)


def greatest(*given: Given) -> Column:
    return _call("greatest", *given)


def least(*given: Given) -> Column:
    return _call("least", *given)


def concat(*given: Given) -> Column:
    return Column("(" + " || ".join(column(each).sql for each in given) + ")")


def floor(given: Given) -> Column:
    return Column(f"CAST(floor({column(given).sql}) AS BIGINT)")


def ceil(given: Given) -> Column:
    return Column(f"CAST(ceil({column(given).sql}) AS BIGINT)")


def shiftleft(given: Given, bits: int) -> Column:
    return Column(f"({column(given).sql} << {bits})")


def shiftright(given: Given, bits: int) -> Column:
    return Column(f"({column(given).sql} >> {bits})")


def broadcast(frame: _Same) -> _Same:
    return frame


# ---- texts and bytes


def length(given: Given) -> Column:
    """Return the length of a binary in bytes."""
    return _call("octet_length", given)


def octet_length(given: Given) -> Column:
    """Return the length of a string in bytes."""
    return _call("strlen", given)


def sha2(given: Given, bits: int) -> Column:
    assert bits == 256, "DuckDB has this one"
    return _call("sha256", given)


def trim(given: Given) -> Column:
    return _call("trim", given)


def substring(given: Given, start: int, count: int) -> Column:
    return Column(f"substring({column(given).sql}, {start}, {count})")


def regexp_replace(given: Given, pattern: str, replacement: str) -> Column:
    return Column(f"regexp_replace({column(given).sql}, {literal(pattern)}, {literal(replacement)}, 'g')")


# ---- times


def unix_micros(given: Given) -> Column:
    return _call("epoch_us", given)


def unix_millis(given: Given) -> Column:
    return _call("epoch_ms", given)


def unix_seconds(given: Given) -> Column:
    return Column(f"(epoch_us({column(given).sql}) // 1000000)")


def timestamp_micros(given: Given) -> Column:
    return Column(f"make_timestamptz(CAST({column(given).sql} AS BIGINT))")


def timestamp_millis(given: Given) -> Column:
    return Column(f"make_timestamptz(CAST({column(given).sql} * 1000 AS BIGINT))")


def timestamp_seconds(given: Given) -> Column:
    return Column(f"make_timestamptz(CAST({column(given).sql} * 1000000 AS BIGINT))")


def date_trunc(unit: str, given: Given) -> Column:
    return Column(f"date_trunc({literal(unit)}, {column(given).sql})")


def date_format(given: Given, pattern: str) -> Column:
    for letters, directive in (("yyyy", "%Y"), ("MM", "%m"), ("dd", "%d"), ("HH", "%H"), ("mm", "%M"), ("ss", "%S")):
        pattern = pattern.replace(letters, directive)
    return Column(f"strftime({column(given).sql}, {literal(pattern)})")


def date_add(given: Given, days: Given) -> Column:
    return Column(f"({column(given).sql} + {column(days).sql})")


# ---- structs, lists and maps


def struct(*given: Given) -> Column:
    fields = map(column, given)
    return Column("struct_pack(" + ", ".join(f'"{each.name}" := {each.sql}' for each in fields) + ")")


def array(*given: Given) -> Column:
    return _call("list_value", *given)


def array_join(given: Given, separator: str) -> Column:
    return Column(f"array_to_string({column(given).sql}, {literal(separator)})")


def element_at(given: Given, key: str) -> Column:
    return Column(f"map_extract_value({column(given).sql}, {literal(key)})")


def sort_array(given: Given) -> Column:
    return _call("list_sort", given)


def array_contains(given: Given, value: object) -> Column:
    """Return whether a list contains ``value``; null if the list is null."""
    return Column(f"list_contains({column(given).sql}, {literal(value)})")


def exists(given: Given, condition: Callable[[Column], Column]) -> Column:
    """Return whether an element of a list meets the condition; null if the list is null. Not for lists of lists."""
    text = column(given).sql
    met = f"list_bool_or([{condition(Column('_each')).sql} FOR _each IN {text}])"
    return Column(f"(CASE WHEN {text} IS NOT NULL THEN coalesce({met}, FALSE) END)")


def explode(given: Given) -> Column:
    return _call("unnest", given)


# ---- aggregates, which may be used over a window


def count(given: Given) -> Column:
    return Column("count(*)" if given == "*" else f"count({column(given).sql})")


def countDistinct(given: Given) -> Column:
    return Column(f"count(DISTINCT {column(given).sql})")


def count_if(given: Given) -> Column:
    return _long(f"count_if({column(given).sql})")


def sum(given: Given) -> Column:
    return _long(f"sum({column(given).sql})")


def min(given: Given) -> Column:
    return _call("min", given)


def max(given: Given) -> Column:
    return _call("max", given)


def min_by(given: Given, order: Given) -> Column:
    return _call("arg_min_null", given, order)


def max_by(given: Given, order: Given) -> Column:
    return _call("arg_max_null", given, order)


def collect_list(given: Given) -> Column:
    text = column(given).sql
    return Column(f"list({text}) FILTER ({text} IS NOT NULL)")


def collect_set(given: Given) -> Column:
    """Return the distinct values as an unordered list."""
    text = column(given).sql
    return Column(f"coalesce(list(DISTINCT {text}) FILTER ({text} IS NOT NULL), [])")


def percentile_approx(given: Given, shares: Sequence[float], accuracy: int) -> Column:
    """Return exact percentiles; ``accuracy`` is ignored."""
    return Column(f"quantile_disc({column(given).sql}, [{', '.join(map(repr, shares))}])")


def first(given: Given, ignorenulls: bool = False) -> Column:
    return _edge("first", given, ignorenulls)


def last(given: Given, ignorenulls: bool = False) -> Column:
    return _edge("last", given, ignorenulls)


def _edge(side: str, given: Given, ignorenulls: bool) -> Column:
    text = column(given).sql
    return Column(f"{side}_value({text} IGNORE NULLS)" if ignorenulls else f"{side}({text})")


def lag(given: Given) -> Column:
    return _call("lag", given)


def lead(given: Given) -> Column:
    return _call("lead", given)


def row_number() -> Column:
    return Column("row_number()")


# ---- Python functions


def udf(function: Callable[..., Any], returns: str, useArrow: bool = False) -> Callable[..., Column]:
    """Register ``function`` as a user-defined function. Its annotations are the types of its arguments."""
    from tandemmq.pipeline.local.session import LocalSession

    annotations = inspect.get_annotations(function)
    takes = [_PYTHON_TYPES[annotations[name]] for name in inspect.signature(function).parameters]
    name = LocalSession.entered().declare(function, takes, _DDL_TYPES[returns])
    return lambda *given: _call(name, *given)
