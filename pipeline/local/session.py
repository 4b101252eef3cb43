"""LocalSession: the counterpart of a SparkSession, a DuckDB database in a new directory for one job."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from tandemmq.pipeline import columns
from tandemmq.pipeline.engine import LOCAL, current
from tandemmq.pipeline.local import parquet
from tandemmq.pipeline.local.column import literal
from tandemmq.pipeline.local.frame import DataFrame, Row
from tandemmq.pipeline.local.parquet import Form, path_of
from tandemmq.pipeline.options import Options
from tandemmq.pipeline.parts import record_batches_of
from tandemmq.pipeline.reach import files_for
from tandemmq.pipeline.stopping import signals_held
from tandemmq.pipeline.walk import JournalFile

if TYPE_CHECKING:
    import pyarrow as pa

EXTRA: Final = "local"
# Memory limit of DuckDB. Larger data is spilled to the directory of the job.
MEMORY: Final = "1GiB"
# Number of rows that DuckDB passes to Arrow's Parquet writer at once, because bodies may be long.
BATCH_ROWS: Final = 256
_FIELD: Final = re.compile(r"`?(\w+)`? (ARRAY<STRING>|MAP<STRING, STRING>|\w+)")
_NAMES: Final = itertools.count(1)


class NoEngine(Exception):
    """DuckDB cannot be used; the message states what to install."""


class LocalSession:
    """Context in which jobs use DuckDB. Its data is in a new directory below ``directory``, which is created if
    necessary; the new directory is removed at the end. For one thread.

    Raises NoEngine if the extra ``local`` is not installed.
    """

    _entered: LocalSession | None = None

    def __init__(self, directory: str | Path) -> None:
        try:
            import duckdb
            import numpy  # noqa: F401
            import pyarrow
        except ImportError as error:
            raise NoEngine(f"{error.name} is not installed: pip install 'tandemmq[{EXTRA}]'") from error
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.mkdtemp(prefix=".local-", dir=directory)
        self._failure: Exception | None = None
        self._made: list[Callable[[], object]] = []  # functions that drop the views, tables and sources that were made
        self._errors: tuple[type[Exception], ...] = (duckdb.Error, pyarrow.ArrowException)
        self._database = duckdb.connect(
            f"{self._scratch}/job.duckdb", config={"memory_limit": MEMORY, "temp_directory": f"{self._scratch}/spill"}
        )
        self._database.execute("SET TimeZone = 'UTC'")
        self.conf = SimpleNamespace(getAll={})
        self.read = Reader(self)

    def __enter__(self) -> LocalSession:
        self._before = current().set(LOCAL)
        LocalSession._entered = self
        return self

    def __exit__(self, *exception: object) -> None:
        current().reset(self._before)
        LocalSession._entered = None
        self._database.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @classmethod
    def entered(cls) -> LocalSession:
        assert cls._entered is not None, "frames are made within a session"
        return cls._entered

    # ---- tables

    def createDataFrame(self, rows: Sequence[Sequence[Any]], schema: str) -> DataFrame:
        """Return a frame of ``rows``. ``schema`` is Spark DDL."""
        import pyarrow as pa

        from tandemmq.pipeline.blocks import array

        fields = [pa.field(name, columns.arrow_type(kind)) for name, kind in _FIELD.findall(schema)]
        arrays = [array([row[at] for row in rows], field.type) for at, field in enumerate(fields)]
        return self._registered(pa.table(arrays, pa.schema(fields)), [field.name for field in fields])

    def journals(self, options: Options, names: Sequence[str]) -> DataFrame:
        """Return a frame that reads the journals on each access. If the options have an end, it reads the files of now
        up to this end; otherwise the files at the time of the access. Raises NoJournal."""
        files = files_for(options)
        return self._registered(_Journals(None if options.until is None else files, options, names, self._fail), names)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Drop the frames that were made in this context, at its end."""
        before, self._made = self._made, []
        try:
            yield
        finally:
            late: tuple[type[BaseException], ...] = (RuntimeError, *self._errors)
            for undo in reversed(self._made):
                try:
                    undo()
                except late:
                    undo()  # an interrupt that arrives after its query stops the next query, so repeat that once
            self._made = before

    def _registered(self, source: object, names: Sequence[str]) -> DataFrame:
        name = f"source_{next(_NAMES)}"
        self._failing(lambda: self._database.register(name, source))
        self._made.append(lambda: self._failing(lambda: self._database.unregister(name)))
        return DataFrame(self, name, names)

    def _fail(self, error: Exception) -> None:
        self._failure = error

    # ---- for frames

    def view(self, sql: str, names: Sequence[str] | None, alias: str | None = None) -> DataFrame:
        """Return a view for a query. ``names``: names of its columns; None: read them from DuckDB."""
        name = f"view_{next(_NAMES)}"
        self._run(f"CREATE TEMP VIEW {name} AS {sql}")
        self._made.append(lambda: self._run(f"DROP VIEW IF EXISTS {name}"))
        if names is None:
            names = [row[0] for row in self._run(f"DESCRIBE {name}").fetchall()]
        return DataFrame(self, name, names, alias)

    def kept(self, frame: DataFrame) -> DataFrame:
        name = f"kept_{next(_NAMES)}"
        self._run(f"CREATE TEMP TABLE {name} AS SELECT * FROM {frame._from}")
        self._made.append(lambda: self._run(f"DROP TABLE IF EXISTS {name}"))
        return DataFrame(self, name, frame.columns)

    def rows(self, sql: str) -> list[Row]:
        relation = self._run(sql, self._database.sql)
        table = self._failing(relation.to_arrow_table)
        names = tuple(table.column_names)
        lists = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
        return [Row.of(values, names) for values in zip(*lists, strict=True)]

    def write(self, sql: str, target: str, form: Form) -> None:
        """Write Parquet into the directory ``target``; an earlier result is replaced."""
        place = path_of(target)
        made = place.with_name(f".{place.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        if form.partitions:
            relation = self._run(sql, self._database.sql)
            with self._failing(lambda: relation.to_arrow_reader(BATCH_ROWS)) as reader:
                self._failing(lambda: parquet.write(reader, made, form))
        else:
            self._run(f"COPY ({sql}) TO {literal(str(made / 'part-00000.parquet'))} (FORMAT parquet)")
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)

    def parquet(self, targets: Sequence[str], schema: Sequence[tuple[str, str]]) -> DataFrame:
        """Return a frame for the Parquet in ``targets``. With a ``schema``, it has only these columns, also of
        directories."""
        source = parquet.scan(parquet.files_of(targets), is_partitioned=bool(schema))
        found = self.view(f"SELECT * FROM {source}", None)
        if not schema:
            return found
        names = [name for name, _ in schema]
        return self.view(f"SELECT {parquet.as_schema(schema, found.columns)} FROM {found._from}", names)

    def declare(self, function: Callable[..., Any], takes: Sequence[str], returns: str) -> str:
        """Register ``function``, and return its name in SQL."""
        name = f"python_{next(_NAMES)}"

        @wraps(function)
        def called(*values: Any) -> Any:
            try:
                return function(*values)
            except Exception as error:
                self._fail(error)
                raise

        self._database.create_function(name, called, list(takes), returns)
        return name

    def _run(self, sql: str, run: Callable[[str], Any] | None = None) -> Any:
        return self._failing(lambda: (run or self._database.execute)(sql))

    def _failing(self, act: Callable[[], Any]) -> Any:
        """Run ``act``. If Python code that DuckDB called or a signal handler raised an exception, raise that
        exception."""
        self._failure = None
        with signals_held(self._database.interrupt):
            try:
                return act()
            except self._errors:
                if self._failure is not None:
                    raise self._failure from None
                raise


class _Journals:
    """Source for DuckDB's scans. Each scan reads the journals again."""

    def __init__(
        self,
        files: Sequence[JournalFile] | None,
        options: Options,
        names: Sequence[str],
        fail: Callable[[Exception], None],
    ) -> None:
        self._files = files
        self._options = options
        self._names = list(names)
        self._fail = fail

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow as pa

        whole = columns.arrow_schema(self._options.table)
        schema = pa.schema([whole.field(name) for name in self._names])
        return pa.RecordBatchReader.from_batches(schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for file in files_for(self._options) if self._files is None else self._files:
                yield from record_batches_of(file, self._options, self._names)
        except Exception as error:
            self._fail(error)
            raise


class Reader:
    """Counterpart of ``spark.read``, for the source "tandemmq" and for Parquet."""

    def __init__(self, session: LocalSession, schema: str = "", options: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._schema = schema
        self._options = dict(options or {})

    @property
    def _fields(self) -> list[tuple[str, str]]:
        return _FIELD.findall(self._schema)

    def format(self, name: str) -> Reader:
        assert name == "tandemmq", "there is no other source"
        return self

    def schema(self, schema: str) -> Reader:
        return Reader(self._session, schema, self._options)

    def option(self, name: str, value: str) -> Reader:
        assert name == "basePath", "Parquet has no other option here"
        return self  # all directories in a file's path are used

    def options(self, **options: str) -> Reader:
        return Reader(self._session, self._schema, self._options | options)

    def load(self, paths: Sequence[str]) -> DataFrame:
        options = Options.of({**self._options, "paths": json.dumps(list(paths))})
        return self._session.journals(options, [name for name, _ in self._fields])

    def parquet(self, *targets: str) -> DataFrame:
        return self._session.parquet(targets, self._fields)


def _plain(value: Any) -> Any:
    """Convert times to those that Spark collects with its driver in UTC."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value
