"""The command line. Each family of commands stands in a file of its own and is imported only when it is asked for.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 no broker or no master reachable.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

# command -> (module, name of the click command in it, what the overview says)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "run": ("broker.cli.run", "run", "Run a broker: master if the lock is free, else standby."),
    "send": ("broker.cli.client", "send", "Send messages; resends what had no receipt after a failover."),
    "receive": ("broker.cli.client", "receive", "Receive and acknowledge messages."),
    "status": ("broker.cli.status", "status", "What a running broker says of itself."),
    "config": ("broker.cli.config", "config", "Check or show the settings."),
    "store": ("broker.cli.store", "store", "Look into a data directory."),
    "bench": ("broker.cli.bench", "bench", "Drive load against any STOMP broker and measure."),
}


class LazyGroup(click.Group):
    """Imports a command's module when it is needed: `--help` and `send` should not wait for aiohttp."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command), "the table names click commands"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, _, help) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tandemmq", prog_name="tandemmq")
def main() -> None:
    """TandemMQ: a highly available message broker. Two brokers, one store directory, nothing lost."""
