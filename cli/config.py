"""``tandemmq config``: are the settings right, and what are they."""

from __future__ import annotations

import json

import click

from tandemmq.cli.lines import say_each
from tandemmq.cli.options import settings_options
from tandemmq.config.settings import Settings
from tandemmq.config.show import as_json, show


@click.group()
def config() -> None:
    """Check and show settings."""


@config.command()
@settings_options
def check(settings: Settings) -> None:
    """Say whether the settings are right. Exit code 2, and why, when they are not."""
    listeners = [f"{connector.scheme} on {connector.address}" for connector in settings.connectors]
    click.echo(f"settings are right: broker {settings.broker.name}, {', '.join(listeners) or 'no connectors'}")
    say_each("", settings.notes)


@config.command(name="show")
@click.option("--json", "is_json", is_flag=True, help="For a machine: times in ms, sizes in bytes.")
@settings_options
def show_command(settings: Settings, is_json: bool) -> None:
    """Print the settings that hold, and where each was read, as a settings file."""
    click.echo(json.dumps(as_json(settings), indent=2) if is_json else show(settings), nl=is_json)
