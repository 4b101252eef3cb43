"""Answers of commands: sentences for people, or one object for a program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

#: Every command that says something has it, and is called with ``as_json``. A failure is JSON too: `cli.failures`.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, also for failures.")


def tell(as_json: bool, facts: Mapping[str, Any], *sentences: object) -> None:
    """Print what was done: ``facts`` as an object with --json, else the sentences, one a line."""
    if as_json:
        click.echo(json.dumps(facts, indent=2, default=str))
        return
    for sentence in sentences:
        click.echo(sentence)
