"""DataFrame: a view of DuckDB with the methods of Spark's DataFrame. It is computed on access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tandemmq.pipeline.local.column import Column, column, names_of, ordering, quoted
from tandemmq.pipeline.local.parquet import form_of

if TYPE_CHECKING:
    from tandemmq.pipeline.local.session import LocalSession

_JOINS = {"inner": "JOIN", "left": "LEFT JOIN", "left_semi": "SEMI JOIN", "left_anti": "ANTI JOIN"}


class Row(tuple[Any, ...]):
    """A tuple whose values can also be accessed by name."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Iterable[Any], names: tuple[str, ...]) -> Row:
        row = cls(values)
        row.names = names
        return row

    def __getattr__(self, name: str) -> Any:
        try:
            return self[self.names.index(name)]
        except ValueError:
            raise AttributeError(name) from None


class DataFrame:
    """A view. ``source``: the text after FROM. ``columns``: the names of its columns. After a join with a condition,
    names may occur twice; then ``select`` must use the aliases of the frames."""

    def __init__(self, session: LocalSession, source: str, columns: Sequence[str], alias: str | None = None) -> None:
        self.sparkSession = session
        self.columns = list(columns)
        self._source = source
        self._alias = alias

    # ---- derived frames

    def select(self, *given: str | Column) -> DataFrame:
        return self._view(_selected(given), None)

    def where(self, condition: str | Column) -> DataFrame:
        return self._view("*", self.columns, f"WHERE {condition.sql if isinstance(condition, Column) else condition}")

    def withColumn(self, name: str, made: Column) -> DataFrame:
        return self.withColumns({name: made})

    def withColumns(self, made: Mapping[str, Column]) -> DataFrame:
        names = [*self.columns, *(name for name in made if name not in self.columns)]
        texts = [f"{made[name].sql} AS {quoted(name)}" if name in made else quoted(name) for name in names]
        return self._view(", ".join(texts), names)

    def withColumnsRenamed(self, names: Mapping[str, str]) -> DataFrame:
        texts = [f"{quoted(name)} AS {quoted(names.get(name, name))}" for name in self.columns]
        return self._view(", ".join(texts), [names.get(name, name) for name in self.columns])

    def drop(self, *names: str) -> DataFrame:
        return self.select(*(name for name in self.columns if name not in names))

    def dropna(self, *, subset: Sequence[str]) -> DataFrame:
        return self.where(" AND ".join(f"{quoted(name)} IS NOT NULL" for name in subset))

    def distinct(self) -> DataFrame:
        return self._view("DISTINCT *", self.columns)

    def orderBy(self, *given: str | Column) -> DataFrame:
        return self._view("*", self.columns, f"ORDER BY {', '.join(map(ordering, given))}")

    def limit(self, count: int) -> DataFrame:
        return self._view("*", self.columns, f"LIMIT {count}")

    def sortWithinPartitions(self, *given: str | Column) -> DataFrame:
        """Sort the whole frame, because it has only one partition."""
        return self.orderBy(*given)

    def repartition(self, *given: object) -> DataFrame:
        return self

    def hint(self, name: str, *given: object) -> DataFrame:
        return self

    def alias(self, name: str) -> DataFrame:
        return DataFrame(self.sparkSession, self._source, self.columns, name)

    def __getitem__(self, name: str) -> Column:
        return column(name)

    def unionByName(self, other: DataFrame, allowMissingColumns: bool = False) -> DataFrame:
        more = [name for name in other.columns if name not in self.columns]
        assert allowMissingColumns or (not more and len(self.columns) == len(other.columns)), (
            "the frames have the same columns"
        )
        return self._view("*", [*self.columns, *more], f"UNION ALL BY NAME SELECT * FROM {other._from}")

    def crossJoin(self, other: DataFrame) -> DataFrame:
        return DataFrame(self.sparkSession, f"{self._from} CROSS JOIN {other._from}", [*self.columns, *other.columns])

    def join(self, other: DataFrame, on: str | Sequence[str] | Column, how: str = "inner") -> DataFrame:
        joined = f"{self._from} {_JOINS[how]} {other._from}"
        if isinstance(on, Column):
            return DataFrame(self.sparkSession, f"{joined} ON {on.sql}", [*self.columns, *other.columns])
        keys = [on] if isinstance(on, str) else list(on)
        joined += f" USING ({', '.join(map(quoted, keys))})"
        of_other = [] if how in ("left_semi", "left_anti") else [name for name in other.columns if name not in keys]
        names = [*keys, *(name for name in self.columns if name not in keys), *of_other]
        return DataFrame(self.sparkSession, joined, names)._view(", ".join(map(quoted, names)), names)

    def groupBy(self, *given: str | Column) -> GroupedData:
        return GroupedData(self, tuple(map(column, given)))

    def agg(self, *given: Column) -> DataFrame:
        return GroupedData(self, ()).agg(*given)

    # ---- results

    def persist(self) -> DataFrame:
        """Compute the frame now, and keep it until the session ends."""
        return self.sparkSession.kept(self)

    cache = persist

    def unpersist(self) -> DataFrame:
        return self

    def collect(self) -> list[Row]:
        return self.sparkSession.rows(f"SELECT * FROM {self._from}")

    def take(self, count: int) -> list[Row]:
        return self.limit(count).collect()

    def first(self) -> Row | None:
        return next(iter(self.take(1)), None)

    def count(self) -> int:
        return int(self.sparkSession.rows(f"SELECT count(*) FROM {self._from}")[0][0])

    @property
    def write(self) -> Writer:
        return Writer(self)

    # ---- SQL of the frame

    @property
    def _from(self) -> str:
        return self._source if self._alias is None else f"{self._source} AS {quoted(self._alias)}"

    def _view(self, selected: str, columns: Sequence[str] | None, behind: str = "") -> DataFrame:
        return self.sparkSession.view(f"SELECT {selected} FROM {self._from} {behind}", columns, self._alias)


@dataclass(frozen=True, slots=True)
class GroupedData:
    frame: DataFrame
    keys: tuple[Column, ...]

    def agg(self, *given: Column) -> DataFrame:
        behind = f"GROUP BY {', '.join(key.sql for key in self.keys)}" if self.keys else ""
        names = names_of([*self.keys, *given])
        texts = [f"{each.sql} AS {quoted(name)}" for each, name in zip((*self.keys, *given), names, strict=True)]
        return self.frame._view(", ".join(texts), names, behind)


@dataclass(frozen=True, slots=True)
class Writer:
    frame: DataFrame
    partitions: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)

    def mode(self, mode: str) -> Writer:
        assert mode == "overwrite", "a job replaces the results of an earlier run"
        return self

    def partitionBy(self, *names: str) -> Writer:
        return replace(self, partitions=names)

    def option(self, name: str, value: object) -> Writer:
        return self.options(**{name: value})

    def options(self, **options: object) -> Writer:
        return replace(self, given={**self.given, **{name: str(value) for name, value in options.items()}})

    def parquet(self, target: str) -> None:
        """Write the frame as Parquet. With partitions, the frame must be sorted by them."""
        sql = f"SELECT * FROM {self.frame._from}"
        self.frame.sparkSession.write(sql, target, form_of(self.given, self.partitions))


def _selected(given: Sequence[str | Column]) -> str:
    texts = []
    plain = [column(each) for each in given if not _is_star(each)]
    names = iter(names_of(plain))
    for each in given:
        if _is_star(each):
            texts.append(f"{quoted(str(each).removesuffix('.*'))}.*")
        else:
            texts.append(f"{column(each).sql} AS {quoted(next(names))}")
    return ", ".join(texts)


def _is_star(given: str | Column) -> bool:
    return isinstance(given, str) and given.endswith(".*")
