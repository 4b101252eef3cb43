"""Options that stand for settings, the same for every command that needs the settings of a broker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from tandemmq.cli.failures import EXIT_WRONG_USAGE, Failed
from tandemmq.config.errors import SettingsError
from tandemmq.config.load import Flags, load
from tandemmq.config.settings import Settings
from tandemmq.locker.contract import UnknownLocker
from tandemmq.locker.kinds import factory

Command = TypeVar("Command", bound=Callable[..., Any])


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
            # The variable gives way to the argument, as it does to --config.
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
    click.option("--ws", metavar="HOST:PORT|off", help="Address for browsers (WebSocket). Default: none."),
    click.option("--admin", metavar="[https://]HOST:PORT|off", help="Address of the admin server."),
    click.option(
        "--set", "overrides", metavar="SECTION.KEY=VALUE", multiple=True, help="Any other setting; repeatable."
    ),
)
