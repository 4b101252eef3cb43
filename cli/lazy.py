"""A group of commands whose modules are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from tandemmq.cli.failures import exit_code_of, standard_streams_open
from tandemmq.disk import NotRegular

# command -> (module in which it has this name, line in the overview)
Commands = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """Group that imports a command's module when it is needed: `--help` and `send` should not wait for aiohttp.

    Called as a program, it ends as `cli.failures` describes, whatever its commands raise.
    """

    def __init__(self, *arguments: Any, table: Commands, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.context_settings["show_default"] = True
        self._table = table

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        run = partial(super().main, given, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        standard_streams_open()
        sys.exit(exit_code_of(run, given))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NotRegular as error:  # a file of the operator that is not a regular file is no bug
            raise click.ClickException(str(error)) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command = getattr(import_module(self._table[cmd_name][0]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command), "the table names click commands"
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=help) for name, (_, help) in self._table.items() if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in self._table.items()])
