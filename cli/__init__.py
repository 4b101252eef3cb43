"""The command line. Each family of commands is a module, imported on first use.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 no broker or no master reachable.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from keyword import iskeyword
from types import ModuleType
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from tandemmq import __version__, compiled
from tandemmq.cli.failures import exit_code_of, standard_streams_open
from tandemmq.disk import NotRegular

# command -> (module in which it has this name, `import_` for `import`; line in the overview)
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
        name = cmd_name.replace("-", "_") + "_" * iskeyword(cmd_name)
        command = getattr(imported(self._table[cmd_name][0]), name)
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


def imported(name: str) -> ModuleType:
    """Import a module that imports many modules. Their objects are never freed, so the garbage collector is set to
    ignore them, and does not run meanwhile."""
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


COMMANDS: Final[Commands] = {
    "run": ("tandemmq.cli.run", "Run a broker: master if the lock is free, else standby."),
    "send": ("tandemmq.cli.client", "Send messages; unconfirmed ones are repeated after a failover."),
    "receive": ("tandemmq.cli.client", "Receive and acknowledge messages."),
    "queues": ("tandemmq.cli.admin_commands", "Queues: list, create, delete, purge, pause, resume."),
    "topics": ("tandemmq.cli.admin_commands", "Topics: list, create, delete."),
    "browse": ("tandemmq.cli.messages", "Show messages of a queue without changing them."),
    "move": ("tandemmq.cli.messages", "Move messages to another destination."),
    "copy": ("tandemmq.cli.messages", "Copy messages to another destination."),
    "retry": ("tandemmq.cli.messages", "Send dead letters back to their original destinations."),
    "connections": ("tandemmq.cli.admin_commands", "Client connections: list, close."),
    "consumers": ("tandemmq.cli.admin_commands", "List consumers, and why one is slow."),
    "subscriptions": ("tandemmq.cli.admin_commands", "Durable subscriptions: list, delete."),
    "tasks": ("tandemmq.cli.admin_commands", "Tasks of move, copy, purge and retry: list, stop."),
    "top": ("tandemmq.cli.status", "Show the busiest queues, live."),
    "status": ("tandemmq.cli.status", "Show the state of a running broker."),
    "handover": ("tandemmq.cli.mastership", "Make the other broker master (planned)."),
    "lock": ("tandemmq.cli.mastership", "Show the lock, its holder and waiting brokers."),
    "log-level": ("tandemmq.cli.admin_commands", "Show or set log levels of a running broker."),
    "replication": ("tandemmq.cli.replication", "Show and change a replicated set."),
    "failover": ("tandemmq.cli.failover_explain", "Explain the last changes of masters."),
    "config": ("tandemmq.cli.config", "Check or show the settings."),
    "user": ("tandemmq.cli.user", "Edit the file of users."),
    "store": ("tandemmq.cli.store", "Show, check, shrink and move a data directory."),
    "backup": ("tandemmq.cli.store.transfer", "Copy the store of a running pair."),
    "restore": ("tandemmq.cli.store.transfer", "Restore a backup into an empty data directory."),
    "doctor": ("tandemmq.cli.doctor", "Check a volume or a replicated set; list failures."),
    "simulate": ("tandemmq.cli.simulate", "Run brokers in virtual time with faults from a seed."),
    "pipeline": ("tandemmq.cli.pipeline", "Analyse, archive and replay journals."),
    "completion": ("tandemmq.cli.man", "Print a completion script for a shell."),
    "man": ("tandemmq.cli.man", "Print or write manual pages."),
    "bench": ("tandemmq.cli.bench", "Measure a STOMP broker under load."),
}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, prog_name="tandemmq", message=f"%(prog)s, version %(version)s ({compiled.description()})"
)
def main() -> None:
    """TandemMQ: a highly available message broker. Two brokers, one store directory, nothing lost."""
