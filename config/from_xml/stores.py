"""Conversion of persistence adapters, lockers and data sources: [store], [locker], [replication]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from tandemmq.config import kahadb_properties, leveldb_properties
from tandemmq.config.from_xml.conversion import SECRET, TEXT, Conversion, Table
from tandemmq.config.from_xml.document import Element
from tandemmq.config.kahadb_property import Property, snake_case
from tandemmq.config.locker import ALIASES, DATABASE, KEYS, LEASE_DATABASE, SHARED_FILE, StatementsSettings
from tandemmq.config.secrets import is_secret
from tandemmq.config.store import FilteredStoreSettings


def _by_name(*groups: tuple[Property, ...]) -> dict[str, Property]:
    return {found.name: found for group in reversed(groups) for found in group}


_LOCKABLE: Final = kahadb_properties.LOCKER
_KAHADB: Final = _by_name(kahadb_properties.KAHADB, _LOCKABLE)
_MKAHADB: Final = _by_name(kahadb_properties.MKAHADB, _LOCKABLE)
_LOCKER: Final = _by_name(_LOCKABLE, kahadb_properties.LOCKER_KINDS)
_LEVELDB: Final = _by_name(*leveldb_properties.GROUPS.values(), _LOCKABLE)
_JDBC: Final = {each.name: each for each in (*_LOCKABLE, *kahadb_properties.LOCKER_KINDS)}
_DATABASES: Final = (DATABASE, LEASE_DATABASE)
#: Data source of a lock while the database is unknown: valid for the loader, but no real host.
_NOWHERE: Final = "postgresql://USER@HOST/DATABASE"

_IN_DATABASE: Final = (
    "The lock stays in the database, the messages do not: there is no store in a database. They go to a new journal "
    "in store.directory, which both brokers of a pair must share. Let clients first consume its messages."
)
_IN_LEVELDB: Final = "LevelDB's files are not read: the store begins empty. Let clients first consume the messages."
_NO_SUCH_STORE: Final = "There is no such store; that of [store] replaces it, and begins empty."
_PASSWORD: Final = (
    f"{SECRET} Set the whole URL in the environment, TANDEMMQ_LOCKER__DATA_SOURCE, or write it into the file."
)
_STATEMENTS: Final = "It concerns tables of messages; here no messages are in a database."
_OF_JDBC: Final = f"{_STATEMENTS} The keys of the lock are in [locker]."


def persistence_adapter(work: Conversion, holder: Element, beans: Mapping[str, Element]) -> None:
    work.wrap(holder)
    for element in holder.children:
        store(work, element, beans)


def store(work: Conversion, element: Element, beans: Mapping[str, Element]) -> bool:
    """Convert a store. Return whether the element is one."""
    settings = work.settings
    if element.name == "kahaDB":
        work.wrap(element)
        work.carry_all(element, _KAHADB, settings)
        _children(work, element, _KAHADB, beans)
    elif element.name == "mKahaDB":
        work.wrap(element)
        work.carry_all(element, _MKAHADB, settings)
        for holder in element.children:
            if holder.name == "filteredPersistenceAdapters":
                for filtered in work.children(holder, "filteredKahaDB"):
                    _filtered(work, filtered)
        _children(work, element, _MKAHADB, beans)
    elif element.name in ("replicatedLevelDB", "levelDB"):
        work.became(element, None, "replication" if element.name == "replicatedLevelDB" else "store", _IN_LEVELDB)
        if element.name == "replicatedLevelDB":
            settings.table("replication")
        work.carry_all(element, _LEVELDB, settings)
        _children(work, element, {} if element.name == "replicatedLevelDB" else _LEVELDB, beans)
    elif element.name in ("jdbcPersistenceAdapter", "journalPersistenceAdapter", "journaledJDBC"):
        _jdbc(work, element, beans)
    elif element.name in ("memoryPersistenceAdapter", "amqPersistenceAdapter", "kahaPersistenceAdapter", "bean"):
        work.leave(element, None, _NO_SUCH_STORE)
    else:
        return False
    return True


def _children(work: Conversion, element: Element, known: Mapping[str, Property], beans: Mapping[str, Element]) -> None:
    for child in element.children:
        if child.name == "locker":
            _lockers(work, child, beans)
        elif child.name in known and (child.number, None) not in work.fates:
            work.leave(child, None, known[child.name].here)


def _filtered(work: Conversion, element: Element) -> None:
    adapters = work.settings.table("store")
    table = adapters.add("filtered_persistence_adapters", (element, None), FilteredStoreSettings)
    work.became(element, None, "store.filtered_persistence_adapters")
    mine = {name: found for name, found in _MKAHADB.items() if name in ("queue", "topic", "perDestination")}
    for name in element.attributes:
        if name in mine:
            work.carry(element, name, table, snake_case(name))
        elif name in _MKAHADB:
            work.leave(element, name, _MKAHADB[name].here)
    for child in element.children:
        if child.name == "persistenceAdapter":
            for adapter in work.children(child, "kahaDB"):
                work.wrap(adapter)
                work.carry_all(adapter, _KAHADB, table, "store.")
                for part in adapter.children:
                    if part.name == "locker":
                        work.leave(part, None, "All stores have one lock: set [locker].")
        elif child.name in _MKAHADB:
            work.leave(child, None, _MKAHADB[child.name].here)


# ---- locks


def _lockers(work: Conversion, holder: Element, beans: Mapping[str, Element]) -> None:
    work.wrap(holder)
    for element in holder.children:
        kind = ALIASES.get(element.name)
        if kind is None:
            work.leave(element, None, f"There is no such kind of lock. Set locker.type to one of {', '.join(KEYS)}.")
            continue
        locker = work.settings.table("locker")
        work.carry(element, None, locker, "type", kind)
        read_here = {
            name: found
            for name, found in _LOCKER.items()
            if name not in ("dataSource", "statements")
            and _is_read(found.key.removeprefix("locker."), kind)
            and found.key != "locker.type"
        }
        work.carry_all(element, read_here, work.settings)
        for name in element.attributes:
            if name in _LOCKER and name not in read_here and name != "dataSource":
                work.leave(element, name, f"A lock of the kind {kind} does not use it.")
        if kind in _DATABASES:
            _data_source(work, element, "dataSource", beans)
            _database_parts(work, element, locker)
        for child in element.children:
            if child.name in _LOCKER and (child.number, None) not in work.fates:
                work.leave(child, None, _LOCKER[child.name].here)


def _is_read(key: str, kind: str) -> bool:
    return key in KEYS[kind] or not any(key in keys for keys in KEYS.values())


def _statements(work: Conversion, element: Element, locker: Table) -> None:
    """Convert ActiveMQ's <statements>, which may contain others of that name."""
    work.wrap(element)
    for name in element.attributes:
        key = snake_case(name)
        if key in StatementsSettings.model_fields:
            work.carry(element, name, locker.table("statements"), key)
        else:
            work.leave(element, name, _STATEMENTS)
    for child in element.children:
        if child.name == "statements":
            _statements(work, child, locker)


def _database_parts(work: Conversion, element: Element, locker: Table) -> None:
    """Convert the statements and the data source in the element."""
    for child in element.children:
        if child.name == "statements":
            _statements(work, child, locker)
        elif child.name == "dataSource":
            for bean in work.children(child, "bean"):
                _bean(work, bean, locker)


def _jdbc(work: Conversion, element: Element, beans: Mapping[str, Element]) -> None:
    locker = work.settings.table("locker")
    work.became(element, None, "locker", _IN_DATABASE)
    work.carry(element, None, locker, "type", DATABASE, _IN_DATABASE)
    for name in element.attributes:
        if name == "useDatabaseLock":
            work.carry(element, name, locker, "use_lock")
        elif name in ("dataDirectory", "directory"):
            work.carry(element, name, work.settings.table("store"), "directory")
        elif name in ("lockKeepAlivePeriod", "useLock", "lockAcquireSleepInterval", "createTablesOnStartup"):
            work.carry_known(element, name, _JDBC[name], work.settings)
        elif name not in ("dataSource", "lockDataSource"):
            work.leave(element, name, _OF_JDBC)
    for child in element.children:
        if child.name == "locker":
            _lockers(work, child, beans)
    if locker.values["type"] == SHARED_FILE:
        for name in ("dataSource", "lockDataSource"):
            if name in element.attributes:
                work.leave(element, name, _OF_JDBC)
        return
    lock_source = "lockDataSource" if "lockDataSource" in element.attributes else "dataSource"
    if lock_source == "lockDataSource" and "dataSource" in element.attributes:
        work.leave(element, "dataSource", _OF_JDBC)
    if "data_source" not in locker.values or locker.values["data_source"] == _NOWHERE:
        _data_source(work, element, lock_source, beans)
    elif lock_source in element.attributes:
        work.leave(element, lock_source, "The locker has a data source of its own.")
    _database_parts(work, element, locker)
    for child in element.children:
        if child.name not in ("locker", "statements", "dataSource"):
            work.leave(child, None, _OF_JDBC)


# ---- where a database is


def _data_source(work: Conversion, element: Element, attribute: str, beans: Mapping[str, Element]) -> None:
    locker = work.settings.table("locker")
    if attribute not in element.attributes:
        work.carry(element, None, locker, "data_source", _NOWHERE, "It names no database: fill in locker.data_source.")
        return
    name = work.value(element, attribute).removeprefix("#")
    bean = beans.get(name)
    if bean is None:
        work.carry(
            element,
            attribute,
            locker,
            "data_source",
            _NOWHERE,
            f"The bean {name} is not in this file: fill in locker.data_source.",
        )
        return
    if _bean(work, bean, locker):
        work.became(element, attribute, "locker.data_source")
        return
    work.carry(
        element,
        attribute,
        locker,
        "data_source",
        _NOWHERE,
        f"The bean {name} names no database that can hold the lock (PostgreSQL, MySQL, MariaDB): fill in "
        'locker.data_source, or set locker.type = "shared-file" and leave it out.',
    )


_JDBC_URL: Final = re.compile(r"jdbc:(postgresql|mysql|mariadb)://([^/?;@,]+)/([^?;]*)(?:[?;](.*))?")
#: Kinds of databases by the class name of a driver's data source.
_CLASSES: Final = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}


def _bean(work: Conversion, bean: Element, locker: Table) -> bool:
    """Convert Spring's bean of a data source to an SQLAlchemy URL. False: it has no known form, and is not
    converted."""
    said: dict[str, tuple[Element, str]] = {}
    for child in bean.children:
        values = [part for part in child.children if part.name == "value"]
        if child.name == "property" and "name" in child.attributes and "value" in child.attributes:
            said[child.attributes["name"]] = (child, "value")
        elif child.name == "property" and "name" in child.attributes and values:
            said[child.attributes["name"]] = (values[0], TEXT)

    def value(*names: str) -> str:
        return next((work.value(*said[name]) for name in names if name in said), "")

    url = _JDBC_URL.fullmatch(value("url", "jdbcUrl", "URL"))
    if url is not None:
        kind, host, database = url[1], url[2], url[3]
    else:
        kind = next((each for word, each in _CLASSES.items() if word in bean.attributes.get("class", "").lower()), "")
        host, database = value("serverName"), value("databaseName")
        # 0 means the driver's default.
        host += f":{value('portNumber', 'port')}" if value("portNumber", "port").strip("0") else ""
    if not (kind and host and database):
        work.leave(bean, None, "A Java object that names no PostgreSQL, MySQL or MariaDB.")
        return False
    used = {"url", "jdbcUrl", "URL"} if url is not None else {"serverName", "databaseName", "portNumber", "port"}
    users = ("username", "user")
    user = value(*users)
    text = f"{kind}://{quote(user, safe='')}{'@' if user else ''}{host}/{database}"
    work.wrap(bean)
    work.became(bean, "class", "locker.data_source")
    if "id" in bean.attributes:
        work.became(bean, "id", "locker.data_source")
    locker.values["data_source"] = text
    locker.sources["data_source"] = [(bean, None)]
    for name, (child, attribute) in said.items():
        holder = child if attribute == "value" else child.parent
        assert holder is not None, "a value is in a property"
        if name in {*used, *users}:
            remark = "Options of the driver are omitted." if url is not None and url[4] and name in used else ""
            work.became(holder, "name", "locker.data_source")
            work.became(child, attribute, "locker.data_source", remark)
        elif is_secret(name):
            work.leave(holder, None, _PASSWORD)
        else:
            work.leave(holder, None, "A setting of the Java driver or of its pool; the lock has one connection.")
    for name in bean.attributes:
        if name not in ("id", "class"):
            work.leave(bean, name, "An attribute of Spring.")
    return True
