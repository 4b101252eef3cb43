"""``tandemmq config``: check and show the settings."""

from __future__ import annotations

import json

import click

from tandemmq.cli.answers import json_option, tell
from tandemmq.cli.from_xml import from_xml
from tandemmq.cli.options import WrongSettings, file_argument, settings_options
from tandemmq.config import show as showing
from tandemmq.config.errors import SettingsError
from tandemmq.config.settings import Settings


@click.group()
def config() -> None:
    """Check and show settings."""


config.add_command(from_xml)


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
    click.echo(json.dumps(showing.as_json(settings), indent=2) if as_json else showing.show(settings), nl=as_json)
