"""A group of commands whose modules are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from tandemmq.disk import NotRegular

# command -> (module in which it has this name, what the overview says)
Commands = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """Imports a command's module when it is needed: `--help` and `send` should not wait for aiohttp."""

    def __init__(self, *arguments: Any, table: Commands, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.context_settings["show_default"] = True
        self._table = table

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NotRegular as error:  # a file of the operator that is not what its name says is no bug
            raise click.ClickException(str(error)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command = getattr(import_module(self._table[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command), "the table names click commands"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in self._table.items()])
