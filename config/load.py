"""Settings from their sources: a file, then the environment, then `--set`, then the other options.

A later source overrides an earlier one, key by key; the list of connectors is replaced as a whole. Nothing is guessed:
a key that does not exist, and an impossible value, raise SettingsError before anything has started.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tandemmq.config import addresses, kahadb, policy_entries, replication_conflicts
from tandemmq.config.addresses import OFF, STOMP
from tandemmq.config.bridges import BridgeSettings
from tandemmq.config.destinations import DestinationSettings, VirtualDestinationSettings
from tandemmq.config.errors import SettingsError, SeveralWrong, UnknownSetting
from tandemmq.config.kahadb import SPECIAL
from tandemmq.config.kahadb_property import Outcome, snake_case
from tandemmq.config.section import Section, section_of, show_size
from tandemmq.config.security import AuthorizationSettings
from tandemmq.config.settings import ConnectorSettings, Settings, default_name
from tandemmq.config.store import FilteredStoreSettings
from tandemmq.modes import whose

ENVIRONMENT_PREFIX: Final = "TANDEMMQ_"
ENVIRONMENT_SEPARATOR: Final = "__"
FILE_BYTES_MAX: Final = 1 << 20

ADAPTERS: Final = "store.filtered_persistence_adapters"
DESTINATIONS: Final = "destinations"
#: Lists of tables, allowed only in the file.
TABLE_LISTS: Final[Mapping[str, type[Section]]] = {
    "connectors": ConnectorSettings,
    DESTINATIONS: DestinationSettings,
    ADAPTERS: FilteredStoreSettings,
    "security.authorization": AuthorizationSettings,
    "virtual_destinations": VirtualDestinationSettings,
    "bridges": BridgeSettings,
}
#: Options of `run` for connectors: the schemes of the connectors that each option replaces.
CONNECTOR_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "stomp": ("stomp",),
    "openwire": ("openwire", "tcp", "nio"),
    "mqtt": ("mqtt", "mqtt+nio"),
    "amqp": ("amqp", "amqp+nio"),
    "ws": ("ws",),
}

#: Tables with one value per key; connectors and destinations are lists of tables.
SECTIONS: Final[dict[str, type[Section]]] = {
    name: model
    for name, field in Settings.model_fields.items()
    if name not in TABLE_LISTS and (model := section_of(field.annotation)) is not None
}


#: ActiveMQ's keys that the tables of each list accept: the keys of [store], or those of a policyEntry.
_SCOPES: Final = {ADAPTERS: "store", DESTINATIONS: DESTINATIONS}
_INSIDE: Final = {**SPECIAL, **policy_entries.SPECIAL}
#: Settings that have a second key, one of ActiveMQ's.
_TARGETS: Final = frozenset(found.target for found in SPECIAL.values() if found.target)


@dataclass(frozen=True, slots=True)
class Flags:
    """Options of `run` that are settings; None: not given. Addresses are HOST:PORT or "off", for the admin server also
    https://HOST:PORT."""

    data: str | None = None
    name: str | None = None
    stomp: str | None = None
    openwire: str | None = None
    mqtt: str | None = None
    amqp: str | None = None
    ws: str | None = None
    admin: str | None = None


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    flags: Flags | None = None,
    *,
    is_again: bool = False,
) -> Settings:
    """Return the complete and valid settings. Raises SettingsError with all errors. `environ`: None for the environment
    of the process. ``is_again``: a running broker reads the settings again; then an empty file is an error, because it
    is probably being written."""
    values = _Values(is_empty_wrong=is_again)
    if path is not None:
        with values.wrong_kept():
            values.take_file(os.fspath(path))
    values.take_environment(os.environ if environ is None else environ)
    values.take_overrides(overrides)
    values.take_flags(flags or Flags())
    return values.settings()


def load_text(text: str, source: str) -> Settings:
    """Return the settings of a file with only this text. Raises SettingsError; ``source`` is its name in messages."""
    values = _Values()
    values.take_text(text, source)
    return values.settings()


class _Values:
    """Settings as read, before validation, and the source of each."""

    def __init__(self, *, is_empty_wrong: bool = False) -> None:
        self.is_empty_wrong = is_empty_wrong
        self.raw: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        # Last value of a setting that has two keys: its layer, its key, and the value.
        self.given: dict[str, tuple[str, str, Any]] = {}
        self.layer = ""
        self.wrong: list[SettingsError] = []

    @contextmanager
    def wrong_kept(self) -> Iterator[None]:
        """Keep an error to report it at the end, together with all others."""
        try:
            yield
        except SettingsError as error:
            self.wrong.append(error)

    def take_file(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                text = file.read(FILE_BYTES_MAX + 1)
            if len(text) > FILE_BYTES_MAX:
                raise SettingsError("", path, f"a settings file has at most {show_size(FILE_BYTES_MAX)}")
            if self.is_empty_wrong and not text.strip():
                raise SettingsError("", path, "the settings file is empty; for the defaults, write a comment")
            self.take_text(text.decode(), path)
        except OSError as error:
            reason = f"the settings file cannot be read: {error.strerror}{whose(error)}"
            raise SettingsError("", path, reason) from error
        except UnicodeDecodeError as error:
            raise SettingsError("", path, f"the settings file is not TOML: {error}") from error

    def take_text(self, text: str, path: str) -> None:
        self.layer = "file"
        try:
            table = tomllib.loads(text)
        except ValueError as error:
            raise SettingsError("", path, f"the settings file is not TOML: {error}") from error
        for section, content in table.items():
            with self.wrong_kept():
                self.take_section(section, content, path)

    def take_section(self, section: str, content: Any, path: str) -> None:
        if section in TABLE_LISTS:
            self.put(section, content, path)
        elif section not in SECTIONS:
            raise UnknownSetting(section, content, _near(section, Settings.model_fields), path)
        elif not isinstance(content, dict):
            raise SettingsError(section, content, f"a table, [{section}]", path)
        else:
            self.raw.setdefault(section, {})  # an empty [replication] is enough for a set
            for key, value in content.items():
                with self.wrong_kept():
                    self.put(f"{section}.{key}", value, path)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        self.layer = "environment"
        for variable in sorted(environ):
            # TANDEMMQ_ without a section is a variable of another program part: TANDEMMQ_CONFIG, for example.
            if variable.startswith(ENVIRONMENT_PREFIX) and ENVIRONMENT_SEPARATOR in variable:
                key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace(ENVIRONMENT_SEPARATOR, ".")
                with self.wrong_kept():
                    self.put_dotted(key, environ[variable], f"environment {variable}")

    def take_overrides(self, overrides: Sequence[str]) -> None:
        self.layer = "--set"
        for override in overrides:
            key, equals, value = override.partition("=")
            with self.wrong_kept():
                if not equals or "." not in key:
                    raise SettingsError("--set", override, "section.key=value")
                self.put_dotted(key.strip(), value.strip(), "--set")

    def take_flags(self, flags: Flags) -> None:
        self.layer = "options"
        if flags.data is not None:
            self.put("store.directory", flags.data, "--data")
        for take in (self.take_name, self.take_admin):
            with self.wrong_kept():
                take(flags)
        for scheme, text in (
            ("openwire", flags.openwire),
            ("mqtt", flags.mqtt),
            ("amqp", flags.amqp),
            ("ws", flags.ws),
            ("stomp", flags.stomp),
        ):
            if text is not None:
                with self.wrong_kept():
                    self.take_connector(scheme, text)

    def take_name(self, flags: Flags) -> None:
        if flags.name is not None:
            if not flags.name:
                raise SettingsError("--name", flags.name, "a name")
            self.put("broker.name", flags.name, "--name")

    def take_admin(self, flags: Flags) -> None:
        if flags.admin is not None:
            is_uri = flags.admin == OFF or flags.admin.startswith(f"{addresses.HTTPS}:")
            uri = flags.admin if is_uri else f"http://{_checked('--admin', flags.admin)}"
            self.put("admin.uri", uri, "--admin")

    def take_connector(self, scheme: str, text: str) -> None:
        """Replace the connectors of ``scheme`` without TLS by the one that the option names. A STOMP connector becomes
        the first one, which decides the default name of the broker."""
        self.drop_connectors(frozenset(CONNECTOR_FLAGS[scheme]), f"--{scheme}")
        if text != OFF:
            made = {"uri": f"{scheme}://{_checked(f'--{scheme}', text)}"}
            others = self.raw["connectors"]
            self.raw["connectors"] = [made, *others] if scheme == STOMP else [*others, made]

    def put_dotted(self, key: str, value: str, origin: str) -> None:
        section = key.partition(".")[0]
        if section == "connectors":
            raise SettingsError(
                key, value, "connectors in the file, or by --stomp, --openwire, --mqtt, --amqp, --ws", origin
            )
        for tables in TABLE_LISTS:
            if f"{key}.".startswith(f"{tables}."):
                raise SettingsError(key, value, f"tables in the file, [[{tables}]]", origin)
        if section not in SECTIONS:
            raise UnknownSetting(key, value, _near(section, Settings.model_fields), origin)
        self.put(key, value, origin)

    def put(self, key: str, value: Any, origin: str) -> None:
        """Take a value for a key of this broker or of ActiveMQ."""
        section = key.partition(".")[0]
        if section in SECTIONS:
            self.raw.setdefault(section, {})  # also if the key is read as a key of another table
        found = SPECIAL.get(key)
        if found is None:
            if key in _TARGETS:
                self.agree(key, key, value, origin)
            if key in _SCOPES and isinstance(value, list):
                value = [
                    self.read_table(table, f"{key}[{number}]", origin, _SCOPES[key])
                    if isinstance(table, dict)
                    else table
                    for number, table in enumerate(value)
                ]
            self.set(key, value, origin)
            return
        read = kahadb.check(found, value, origin)
        if found.outcome is Outcome.FIXED:
            self.origins[key] = origin
            return
        self.agree(found.target, key, read, origin)
        self.set(found.target, read, f"{origin}, as {key}")
        self.notes[found.target] = f"{key} = {value!r} (from {origin}) is read as {found.target} = {read!r}"

    def agree(self, target: str, key: str, value: Any, origin: str) -> None:
        """Check that two keys for one setting have the same value if they are in one file."""
        layer, other, before = self.given.get(target, ("", "", None))
        if layer == self.layer and other != key and str(before).lower() != str(value).lower():
            raise SettingsError(key, value, f"the same as {other}, since both are one setting; remove one", origin)
        self.given[target] = self.layer, key, value
        self.notes.pop(target, None)

    def read_table(self, table: dict[str, Any], prefix: str, origin: str, scope: str) -> dict[str, Any]:
        """Read a table of a list, or a table inside it, and replace ActiveMQ's keys by those of this broker. ``scope``:
        prefix of the keys in `_INSIDE`."""
        root = f"{scope.partition('.')[0]}."
        read: dict[str, Any] = {}
        for name, value in table.items():
            found = _INSIDE.get(f"{scope}.{name}")
            target = name
            if found is not None and (not found.target or found.target.startswith(root)):
                value = kahadb.check(replace(found, key=f"{prefix}.{name}"), value, origin)
                if found.outcome is Outcome.FIXED:
                    continue
                target = found.target.removeprefix(root)
            elif isinstance(value, dict):
                value = self.read_table(value, f"{prefix}.{name}", origin, f"{scope}.{name}")
            if target in read and read[target] != value:
                raise SettingsError(f"{prefix}.{name}", value, "a single value: two keys are one setting", origin)
            read[target] = value
        return read

    def set(self, key: str, value: Any, origin: str) -> None:
        *path, last = key.split(".")
        table = self.raw
        for name in path:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SettingsError(key, value, f"{name} to be a table", origin)
        table[last] = value
        self.origins[key] = origin

    def drop_connectors(self, schemes: frozenset[str], origin: str) -> None:
        connectors = self.raw.get("connectors")
        if connectors is None:
            connectors = [{"uri": connector.uri} for connector in Settings().connectors]
        if isinstance(connectors, list):
            connectors = [entry for entry in connectors if _scheme(entry) not in schemes]
        self.put("connectors", connectors, origin)

    def settings(self) -> Settings:
        connectors = self.raw.get("connectors")
        if isinstance(connectors, list):
            connectors = [entry for entry in connectors if not (isinstance(entry, dict) and entry.get("uri") == OFF)]
            self.raw["connectors"] = connectors
        try:
            settings = Settings.model_validate(self.raw)
        except ValidationError as error:
            explained = {each.key: each for each in reversed([self.explain(each) for each in error.errors()])}
            self.wrong += reversed(explained.values())  # only the first error of each key
            raise self.all_wrong() from error
        if self.wrong:
            raise self.all_wrong()
        settings = settings.with_origins(self.origins, list(self.notes.values()))
        replication_conflicts.check(settings)
        if not settings.broker.name:
            broker = settings.broker.model_copy(update={"name": default_name(settings.connectors)})
            settings = settings.model_copy(update={"broker": broker})
        return settings

    def all_wrong(self) -> SettingsError:
        return self.wrong[0] if len(self.wrong) == 1 else SeveralWrong(self.wrong)

    def explain(self, error: ErrorDetails) -> SettingsError:
        """Convert a validation error to a SettingsError."""
        key = _dotted(error["loc"])
        origin = self.origins.get(
            next((name for name in self.origins if f"{key}.".startswith((f"{name}.", f"{name}["))), "")
        )
        if error["type"] == "extra_forbidden":
            return UnknownSetting(key, error["input"], _near_key(key, error["loc"]), origin)
        if error["type"] == "tuple_type":
            return SettingsError(key, error["input"], f"a list of tables, [[{key}]]", origin)
        return SettingsError(key, error["input"], _expected(error), origin)


_WORDS: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a table",
    "model_type": "a table",
    "missing": "a value",
    "string_too_short": "text",
}


def _expected(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    kind = error["type"]
    if kind == "greater_than_equal":
        return f"at least {context['ge']}"
    if kind == "less_than_equal":
        return f"at most {context['le']}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return str(context["expected"]).replace("'", '"')
    return _WORDS.get(kind, error["msg"])


def _dotted(location: tuple[int | str, ...]) -> str:
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _near_key(key: str, location: tuple[int | str, ...]) -> str | None:
    """Return the key that was probably meant."""
    section, name = str(location[0]), str(location[-1])
    tables = next((TABLE_LISTS[each] for each in TABLE_LISTS if key.startswith(f"{each}[")), None)
    table = _inner(tables or SECTIONS[section], [str(part) for part in location[1:-1] if not isinstance(part, int)])
    fields: Iterable[str] = table.model_fields
    if section in SECTIONS:
        special = [found.key.removeprefix(f"{section}.") for found in SPECIAL.values()]
        fields = [*fields, *special]
        # In ActiveMQ the lock's settings are beside the store's.
        snake = _snake(name)
        elsewhere = [other for other, model in SECTIONS.items() if snake in model.model_fields]
        if elsewhere and snake not in fields:
            return f"{elsewhere[0]}.{snake}"
    near = _near(name, fields)
    return f"{key.rpartition('.')[0]}.{near}" if near else None


def _inner(model: type[Section], path: Sequence[str]) -> type[Section]:
    """Return the table inside a table."""
    for name in path:
        field = model.model_fields.get(name)
        model = (section_of(field.annotation) if field is not None else None) or model
    return model


def _near(name: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(_snake(name), known, 1)), None)


def _snake(name: str) -> str:
    # ActiveMQ's own spelling is the likeliest mistake: journalMaxFileLength.
    return snake_case(name).replace("-", "_")


def _scheme(entry: object) -> str:
    uri = entry.get("uri") if isinstance(entry, dict) else None
    return uri.partition(":")[0] if isinstance(uri, str) else ""


def _checked(option: str, text: str) -> addresses.Address:
    try:
        return addresses.address(text)
    except ValueError as error:
        raise SettingsError(option, text, str(error)) from error
