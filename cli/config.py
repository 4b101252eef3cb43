"""The settings: options for every command that needs those of a broker, and `tandemmq config`."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
from click.core import ParameterSource

from tandemmq.cli.connect import Command
from tandemmq.cli.failures import EXIT_WRONG_USAGE, Failed
from tandemmq.cli.output import json_option, tell
from tandemmq.config.errors import SettingsError
from tandemmq.config.load import Flags, load
from tandemmq.config.settings import Settings
from tandemmq.locker.contract import UnknownLocker
from tandemmq.locker.kinds import factory

if TYPE_CHECKING:
    from tandemmq.config.from_xml import Converted

PROPERTIES_BYTES_MAX: Final = 1 << 20


class WrongSettings(Failed):
    """Ends the command with exit code 2: the settings' errors, a line each."""

    exit_code = EXIT_WRONG_USAGE


def settings_options(command: Command) -> Command:
    """Give a command the settings options of `run`. It is called with `settings: Settings`, complete and valid.

    Wrong settings never reach the command: they end it with exit code 2.
    """

    @functools.wraps(command)
    def with_settings(
        *arguments: Any,
        config: str | None,
        overrides: tuple[str, ...],
        file: str | None = None,
        **others: Any,
    ) -> Any:
        if file is not None:
            # The argument overrides the environment variable, as --config does.
            if click.get_current_context().get_parameter_source("config") is ParameterSource.COMMANDLINE:
                raise click.UsageError("the settings file is named twice: as FILE and by --config")
            config = file
        flags = Flags(**{name: others.pop(name) for name in _FLAGS})
        return command(*arguments, settings=load_settings(config, overrides, flags), **others)

    decorated: Any = with_settings
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


#: FILE, for commands with ``settings_options`` below it: the same as `--config FILE`.
file_argument: Final = click.argument("file", metavar="[FILE]", required=False)


def load_settings(config: str | None, overrides: tuple[str, ...] = (), flags: Flags | None = None) -> Settings:
    """Return the settings of file, environment and options. WrongSettings, not SettingsError, if they are wrong."""
    try:
        settings = load(config, None, overrides, flags)
        # config/ does not know the kinds of lock; an error here comes before the ports are bound.
        factory(settings.locker.type)
    except SettingsError as error:
        raise WrongSettings(str(error), errors=[each.facts() for each in error.all]) from error
    except UnknownLocker as error:
        raise WrongSettings(str(error)) from error
    return settings


def read_again() -> Callable[[], Settings]:
    """Return a function that reloads the running command's settings, file included. It raises SettingsError."""
    text = click.get_current_context().params
    flags = Flags(**{name: text[name] for name in _FLAGS})
    return functools.partial(load, text["config"], None, text["overrides"], flags, is_again=True)


_FLAGS: Final = tuple(field.name for field in fields(Flags))
_OPTIONS: Final = (
    click.option(
        "--config",
        metavar="FILE",
        envvar="TANDEMMQ_CONFIG",
        help="Settings file (TOML). Default: no file.",
    ),
    click.option("--data", metavar="DIR", help="Data directory, shared by the pair (store.directory)."),
    click.option("--name", metavar="NAME", help="Name of this broker, unique in its pair (broker.name)."),
    click.option("--stomp", metavar="HOST:PORT|off", help="Address for STOMP clients."),
    click.option("--openwire", metavar="HOST:PORT|off", help="Address for OpenWire clients (JMS)."),
    click.option("--mqtt", metavar="HOST:PORT|off", help="Address for MQTT clients. Default: none."),
    click.option("--amqp", metavar="HOST:PORT|off", help="Address for AMQP 1.0 clients. Default: none."),
    click.option("--ws", metavar="HOST:PORT|off", help="Address for browsers (WebSocket). Default: none."),
    click.option("--admin", metavar="[https://]HOST:PORT|off", help="Address of the admin server."),
    click.option(
        "--set", "overrides", metavar="SECTION.KEY=VALUE", multiple=True, help="Any other setting; repeatable."
    ),
)


@click.group()
def config() -> None:
    """Check and show settings."""


@config.command()
@json_option
@file_argument
@settings_options
def check(settings: Settings, as_json: bool) -> None:
    """Check whether a broker could start here with the settings. Exit code 2 and the reasons if not.

    Reads the files that the settings name. Takes neither the lock nor a port.
    """
    from tandemmq.broker import start_checks

    found = [*start_checks.findings(settings), *start_checks.in_use(settings)]
    errors = [each for each in found if isinstance(each, Exception)]
    if errors:
        facts = [each for error in errors for each in _facts(error)]
        raise WrongSettings("\n".join(map(str, errors)), errors=facts)
    notes = [*settings.notes, *(each for each in found if isinstance(each, str)), *start_checks.expiring(settings)]
    listeners = [f"{connector.scheme} on {connector.address}" for connector in settings.connectors]
    sentence = f"settings are valid: broker {settings.broker.name}, {', '.join(listeners) or 'no connectors'}"
    tell(as_json, {"broker": settings.broker.name, "notes": notes}, sentence, *notes)


def _facts(error: Exception) -> list[dict[str, object]]:
    if isinstance(error, SettingsError):
        return [each.facts() for each in error.all]
    return [{"key": None, "value": None, "expected": str(error), "source": None, "near": None}]


@config.command(name="show")
@json_option
@file_argument
@settings_options
def show_command(settings: Settings, as_json: bool) -> None:
    """Print all settings and their sources, as a settings file.

    With --json, times are in ms and sizes in bytes.
    """
    from tandemmq.config import show as showing

    click.echo(json.dumps(showing.as_json(settings), indent=2) if as_json else showing.show(settings), nl=as_json)


@config.command(name="from-xml")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@click.option(
    "--define",
    "defines",
    metavar="NAME=VALUE",
    multiple=True,
    help="Value of ${NAME} in the file; repeatable.",
)
@click.option(
    "--properties", metavar="FILE", multiple=True, type=click.File("rb"), help="Java properties file with such values."
)
@click.option("--login-config", metavar="FILE", help="Java's login.config for a JAAS plugin.")
@click.option("--users", metavar="FILE", help="Write the users to this file, with hashed passwords.")
@click.option("--output", metavar="FILE", help="Write the settings to this file. Default: stdout.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@json_option
def from_xml(
    file: BinaryIO,
    defines: tuple[str, ...],
    properties: tuple[BinaryIO, ...],
    login_config: str | None,
    users: str | None,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Convert activemq.xml to settings. Differences are reported on stderr and in the file, with the reason."""
    from tandemmq.broker.security.users import UsersError, write
    from tandemmq.config import from_xml as conversion
    from tandemmq.config.from_xml.document import XML_BYTES_MAX
    from tandemmq.config.from_xml.security import read as read_login_config

    name = os.path.basename(getattr(file, "name", "stdin"))

    there = [path for path in (output, users) if path is not None and os.path.lexists(path)]
    if there and not force:
        raise WrongSettings(f"{there[0]} exists already; --force overwrites it")
    try:
        converted = conversion.convert(
            file.read(XML_BYTES_MAX + 1),
            name,
            _defined(defines, properties),
            conversion.Logins(
                _line if users is not None else None,
                users or conversion.USERS_FILE,
                None if login_config is None else read_login_config(_read(login_config).decode()),
                lambda each: _properties_beside(str(login_config), each),
            ),
        )
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSettings(f"{login_config}: {error}") from error
    except conversion.UnreadableXml as error:
        raise WrongSettings(f"{name}: {error}") from error
    except conversion.Missing as error:
        names = ", ".join(f"${{{each}}} (line {line})" for each, line in error.names.items())
        one = next(iter(error.names))
        raise WrongSettings(f"{name}: no value for {names}: give --define {one}=VALUE, or --properties FILE") from error
    try:
        if users is not None:
            write(users, "".join(f"{line}\n" for line in converted.users))
        if output is not None:
            with open(output, "w" if force else "x", encoding="utf-8") as made:
                made.write(converted.text)
    except (OSError, UsersError) as error:
        raise Failed(f"cannot be written: {error}") from error
    if as_json:
        tell(as_json, _conversion(converted))
    elif output is None:
        click.echo(converted.text, nl=False)
    for note in converted.notes:
        click.echo(str(note), err=True)


def _defined(defines: tuple[str, ...], properties: tuple[BinaryIO, ...]) -> dict[str, str]:
    """Return the defined values. --define overrides the properties files."""
    from tandemmq.config.from_xml import properties_of

    found: dict[str, str] = {}
    for file in properties:
        found |= properties_of(file.read(PROPERTIES_BYTES_MAX).decode("latin-1"))  # java.util.Properties
    for define in defines:
        name, equals, value = define.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--define {define!r}: expected NAME=VALUE")
        found[name] = value
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(PROPERTIES_BYTES_MAX)


def _properties_beside(login_config: str, name: str) -> dict[str, str]:
    """Read a properties file that login.config names, relative to it. ValueError when it cannot be read."""
    from tandemmq.config.from_xml import properties_of

    try:
        return properties_of(_read(os.path.join(os.path.dirname(login_config), name)).decode("latin-1"))
    except OSError as error:
        raise ValueError(f"{name} beside login.config ({error.strerror})") from error


def _line(name: str, password: str, groups: str) -> str:
    from tandemmq.broker.security.users import User, checked_name, with_password
    from tandemmq.broker.security.users import groups as groups_of

    return str(with_password(User(checked_name(name), None, groups_of(groups)), password))


def _conversion(converted: Converted) -> dict[str, Any]:
    names = ("line", "path", "attribute", "as")
    return {
        "settings": converted.text,
        "carried": [dict(zip(names, each, strict=True)) for each in converted.carried],
        "notes": [asdict(note) for note in converted.notes],
    }
