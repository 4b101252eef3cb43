"""The table [locker]: the kind of lock that decides which broker is master, and the settings of each kind.

A key that the chosen kind does not read is refused, by name, since the operator relies on it. A kind gets its settings
from `LockerSettings.kind_options`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, field_validator, model_validator

from tandemmq.config.secrets import masked_text
from tandemmq.config.section import EXPECTED_TIME, Milliseconds, Path, Section, Unit, listed, milliseconds

SHARED_FILE: Final = "shared-file"
DATABASE: Final = "database"
LEASE_DATABASE: Final = "lease-database"
ZOOKEEPER: Final = "zookeeper"
KUBERNETES: Final = "kubernetes-lease"

#: ActiveMQ's names of its elements, and the kinds that they mean here.
ALIASES: Final = {
    "shared-file-locker": SHARED_FILE,
    "database-locker": DATABASE,
    "transact-database-locker": DATABASE,
    "lease-database-locker": LEASE_DATABASE,
}

_DATABASE_KEYS: Final = (
    "data_source",
    "query_timeout",
    "create_tables_on_startup",
    "lock_table_name",
    "table_prefix",
    "statements",
)
#: Keys of each kind, beside those of all kinds.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    SHARED_FILE: ("directory",),
    DATABASE: _DATABASE_KEYS,
    LEASE_DATABASE: (*_DATABASE_KEYS, "lease_holder_id", "max_allowable_diff_from_db_time"),
    ZOOKEEPER: ("zookeeper",),
    KUBERNETES: ("kubernetes",),
    "memory": (),
}
#: Keys of a kind that another package provides.
FOREIGN_KEYS: Final = ("options",)
#: Keys that only some kinds read.
OWN_KEYS: Final = sorted({key for keys in KEYS.values() for key in keys} | set(FOREIGN_KEYS))

#: Sleep interval and keep-alive period in ms of the kinds that differ from `shared-file`.
PERIODS: Final = {
    DATABASE: (500, 500),
    LEASE_DATABASE: (2_000, 500),
    ZOOKEEPER: (4_000, 500),
    KUBERNETES: (15_000, 2_000),
}

_URL: Final = re.compile(r"(postgresql|mysql|mariadb|sqlite)(\+\w+)?://.*", re.DOTALL)
EXPECTED_URL: Final = (
    "an SQLAlchemy URL: postgresql://USER:PASSWORD@HOST/DATABASE, mysql://… or mariadb://… the same, sqlite:////PATH"
)


def _kind(value: object) -> object:
    return ALIASES.get(value, value) if isinstance(value, str) else value


def _data_source(value: object) -> object:
    if not isinstance(value, str) or not _URL.fullmatch(value):
        raise ValueError(EXPECTED_URL)
    return value


def _seconds(value: object) -> int:
    """Return ActiveMQ's queryTimeout in ms. A plain number is in seconds; below 1: the default."""
    try:
        if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return max(value, 0) * 1000
        return milliseconds(value)
    except ValueError as error:
        raise ValueError(EXPECTED_SECONDS) from error


EXPECTED_SECONDS: Final = EXPECTED_TIME.replace("milliseconds", "seconds")
Seconds = Annotated[int, BeforeValidator(_seconds), Unit("s")]
DataSource = Annotated[str, BeforeValidator(_data_source), PlainSerializer(masked_text)]


class StatementsSettings(Section):
    """ActiveMQ's `<statements>`: names and SQL of the lock's table. Missing values are as in ActiveMQ."""

    lock_table_name: str | None = Field(None, min_length=1)
    """Same as `locker.lock_table_name`."""
    table_prefix: str | None = None
    """Same as `locker.table_prefix`."""
    id_column: str | None = Field(None, min_length=1)
    """Column of the row number. Default: `ID`."""
    time_column: str | None = Field(None, min_length=1)
    """Column of the end of the lease. Default: `TIME`."""
    broker_name_column: str | None = Field(None, min_length=1)
    """Column of the holder's name. Default: `BROKER_NAME`."""
    long_data_type: str | None = Field(None, min_length=1)
    """Type of number columns when the table is created. Default: `BIGINT`."""
    string_id_data_type: str | None = Field(None, min_length=1)
    """Type of the name column when the table is created. Default: `VARCHAR(250)`."""
    use_lock_create_where_clause: bool | None = None
    """`database`: lock row 1 only (default); `false`: lock all rows, as in ActiveMQ by default."""
    create_lock_schema_statements: Annotated[
        tuple[str, ...] | None, BeforeValidator(partial(listed, separator=";"))
    ] = None
    """Statements that create the table and its row 1: a list, or one text with `;` between them."""
    lock_create_statement: str | None = Field(None, min_length=1)
    """`database`: statement that takes the lock, in a transaction. No `?`."""
    lock_update_statement: str | None = Field(None, min_length=1)
    """`database`: statement that writes to the locked row. `?`: the time."""
    lease_obtain_statement: str | None = Field(None, min_length=1)
    """`lease-database`: statement that takes a free lease. `?`: name, end, now."""
    lease_update_statement: str | None = Field(None, min_length=1)
    """`lease-database`: statement that extends or releases a lease. `?`: name, end, previous name."""
    lease_owner_statement: str | None = Field(None, min_length=1)
    """`lease-database`: statement that reads name and end. No `?`."""
    current_date_time_statement: str | None = Field(None, min_length=1)
    """`lease-database`: statement that reads the clock of the database, as a timestamp or in ms. No `?`."""


class KindTable(Section):
    """A table that one kind of lock reads beside the settings of all kinds. Length and renewal of a lease are in
    `[locker]`, as for every kind."""

    def options(self) -> dict[str, object]:
        """Return the operator's values, or else the defaults, as plain values. Keys that have neither are left out."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


class ZooKeeperTable(KindTable):
    hosts: str | None = Field(None, min_length=1)
    """The servers: `HOST:PORT,HOST:PORT,…`, optionally with `/CHROOT` at the end."""
    path: str = Field("/tandemmq/lock", pattern=r"^(/[^/]+)+$")
    """Node under which the brokers of one pair queue. Use another one for each pair."""
    digest: str | None = Field(None, pattern=r"^[^:]+:.+$")
    """`USER:PASSWORD` for the servers; then only this user can change the nodes. Never shown."""
    connect_timeout: Milliseconds = Field(5_000, ge=100)
    """Time to reach the servers."""


class KubernetesTable(KindTable):
    lease: str = Field("tandemmq", min_length=1)
    """Name of the Lease. Use another one for each pair."""
    namespace: str | None = Field(None, min_length=1)
    """Namespace of the Lease. Default: that of the pod."""
    server: str | None = Field(None, pattern=r"^https://[^/]+$")
    """The API server: `https://HOST:PORT`. Default: that of the pod."""
    token_file: Path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    """File with the bearer token. It is read for each request, because tokens change every hour."""
    ca_file: Path = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """Certificates that may sign that of the API server."""
    request_timeout: Milliseconds = Field(2_000, ge=100)
    """Time for an answer, at most a third of a lease."""


class LockerSettings(Section):
    # First field: validation of the others depends on it.
    type: Annotated[str, BeforeValidator(_kind)] = Field(SHARED_FILE, min_length=1)
    """Kind of lock: `shared-file`, `database`, `lease-database`, `zookeeper`, `kubernetes-lease`, or an installed one.
    ActiveMQ's names (`lease-database-locker`) are accepted."""
    use_lock: bool = True
    """False: no lock. Unsafe; `status` warns."""
    fail_if_locked: bool = False
    """Stop with an error if another broker is master, instead of standing by."""
    lock_acquire_sleep_interval: Milliseconds = Field(50, ge=1)
    """Interval between attempts of a standby, plus or minus 10 % at random. For kinds with a lease: the length of the
    lease. Default by kind: `database` 500ms, `lease-database` 2s, `zookeeper` 4s, `kubernetes-lease` 15s."""
    lock_keep_alive_period: Milliseconds = 500
    """Interval of the master's proofs that it holds the lock. 0: off; unsafe, `status` warns. Default for
    `kubernetes-lease`: 2s."""
    retry_interval: Milliseconds = Field(10_000, ge=200)
    """Longest pause before a demoted broker tries again. It starts at 0.2 s and doubles."""
    directory: Path | None = None
    """`shared-file`: directory of the file `lock`. Default: the directory of the store."""
    data_source: DataSource | None = None
    """`database`, `lease-database`: SQLAlchemy URL of PostgreSQL, MySQL, MariaDB or SQLite. The password is never
    shown."""
    lease_holder_id: str | None = Field(None, pattern=r"^[!-{}~]{1,100}$")
    """`lease-database`: name of this broker in the table. Default: the broker's name."""
    max_allowable_diff_from_db_time: Milliseconds | None = None
    """`lease-database`: warn if the clocks of database and host differ by more than this. 0 (default): no warning.
    Leases always use the clock of the database."""
    query_timeout: Seconds | None = None
    """`database`, `lease-database`: time for an answer of the database. Default: half a lease, from 250ms to 5s."""
    create_tables_on_startup: bool | None = None
    """`database`, `lease-database`: create a missing table and row. Default: true."""
    lock_table_name: str | None = Field(None, min_length=1)
    """`database`, `lease-database`: name of the table. Default: `ACTIVEMQ_LOCK`, as in ActiveMQ."""
    table_prefix: str | None = None
    """`database`, `lease-database`: text before the name of the table."""
    statements: StatementsSettings = Field(default_factory=StatementsSettings)  # type: ignore[arg-type]
    """`database`, `lease-database`: other names and SQL for the table, as in ActiveMQ's `<statements>`."""
    zookeeper: ZooKeeperTable = Field(default_factory=ZooKeeperTable)  # type: ignore[arg-type]
    """Settings of `zookeeper`."""
    kubernetes: KubernetesTable = Field(default_factory=KubernetesTable)  # type: ignore[arg-type]
    """Settings of `kubernetes-lease`."""
    options: dict[str, str] = Field({})
    """Options of an installed kind of lock."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_kind(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        kind = _kind(values.get("type", SHARED_FILE))
        given = dict(values)
        if isinstance(kind, str) and kind in PERIODS:
            sleep, keep_alive = PERIODS[kind]
            given.setdefault("lock_acquire_sleep_interval", sleep)
            given.setdefault("lock_keep_alive_period", keep_alive)
        if kind in (DATABASE, LEASE_DATABASE):
            given.setdefault("data_source", "")  # an empty one is refused, by its own key
        return given

    @field_validator(*OWN_KEYS, mode="before")
    @classmethod
    def _is_read_by_the_kind(cls, value: object, info: ValidationInfo) -> object:
        kind, key = info.data.get("type"), str(info.field_name)
        if isinstance(kind, str) and key not in KEYS.get(kind, FOREIGN_KEYS):
            readers = [f'"{other}"' for other, keys in KEYS.items() if key in keys] or ["a kind that is installed"]
            raise ValueError(f'no value if type is "{kind}"; only type = {" or ".join(readers)} reads it')
        return value

    def reads(self, key: str) -> bool:
        """Return whether the chosen kind reads this key."""
        return key not in OWN_KEYS or key in KEYS.get(self.type, FOREIGN_KEYS)

    def kind_options(self) -> dict[str, object]:
        """Return the settings of the chosen kind only: plain values, times in ms, without those that are not set."""
        if self.type == ZOOKEEPER:
            return self.zookeeper.options()
        if self.type == KUBERNETES:
            return self.kubernetes.options()
        if self.type not in KEYS:
            return dict(self.options)
        options = {key: getattr(self, key) for key in KEYS[self.type]}
        if "statements" in options:
            options["statements"] = self.statements.model_dump(exclude_none=True) or None
        return {key: value for key, value in options.items() if value is not None}
