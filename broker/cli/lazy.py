"""A group of commands whose modules are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from tandemmq.disk import NotRegular

# command -> (module, name of the click command in it, what the overview says)
Commands = Mapping[str, tuple[str, str, str]]


class LazyGroup(click.Group):
    """Imports a command's module when it is needed: `--help` and `send` should not wait for aiohttp."""

    def __init__(self, *arguments: Any, table: Commands, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._table = table

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NotRegular as error:  # what somebody put under the name of a file is nobody's bug
            raise click.ClickException(str(error)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, name, _ = self._table[cmd_name]
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command), "the table names click commands"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, _, help) in self._table.items()])
