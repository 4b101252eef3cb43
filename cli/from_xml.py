"""``tandemmq config from-xml``: convert an ActiveMQ configuration to settings, with a note for each difference."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from tandemmq.cli.answers import json_option, tell
from tandemmq.cli.failures import Failed
from tandemmq.cli.options import WrongSettings

if TYPE_CHECKING:
    from tandemmq.config.from_xml import Converted

PROPERTIES_BYTES_MAX: Final = 1 << 20


@click.command(name="from-xml")
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
    from tandemmq.config.from_xml.login_config import read as read_login_config

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
            _write(output, converted.text, force)
    except (OSError, UsersError) as error:
        raise Failed(f"cannot be written: {error}") from error
    if as_json:
        tell(as_json, _facts(converted))
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


def _write(path: str, text: str, force: bool) -> None:
    with open(path, "w" if force else "x", encoding="utf-8") as made:
        made.write(text)


def _facts(converted: Converted) -> dict[str, Any]:
    names = ("line", "path", "attribute", "as")
    return {
        "settings": converted.text,
        "carried": [dict(zip(names, each, strict=True)) for each in converted.carried],
        "notes": [asdict(note) for note in converted.notes],
    }
