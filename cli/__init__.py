"""The command line. Each family of commands is a module, imported on first use.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 no broker or no master reachable.
"""

from __future__ import annotations

from typing import Final

import click

from tandemmq import __version__, compiled
from tandemmq.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "run": ("tandemmq.cli.run", "Run a broker: master if the lock is free, else standby."),
    "send": ("tandemmq.cli.client", "Send messages; unconfirmed ones are repeated after a failover."),
    "receive": ("tandemmq.cli.client", "Receive and acknowledge messages."),
    "queues": ("tandemmq.cli.queues", "Queues: list, create, delete, purge, pause, resume."),
    "topics": ("tandemmq.cli.queues", "Topics: list, create, delete."),
    "browse": ("tandemmq.cli.messages", "Show messages of a queue without changing them."),
    "move": ("tandemmq.cli.messages", "Move messages to another destination."),
    "copy": ("tandemmq.cli.messages", "Copy messages to another destination."),
    "retry": ("tandemmq.cli.messages", "Send dead letters back to where they died."),
    "connections": ("tandemmq.cli.connections", "Client connections: list, close."),
    "consumers": ("tandemmq.cli.connections", "List consumers, and why one is slow."),
    "subscriptions": ("tandemmq.cli.connections", "Durable subscriptions: list, delete."),
    "tasks": ("tandemmq.cli.connections", "Tasks of move, copy, purge and retry: list, stop."),
    "top": ("tandemmq.cli.top", "Show the busiest queues, live."),
    "status": ("tandemmq.cli.status", "Show the state of a running broker."),
    "handover": ("tandemmq.cli.handover", "Make the other broker master (planned)."),
    "lock": ("tandemmq.cli.lock", "Show the lock, its holder and waiting brokers."),
    "log-level": ("tandemmq.cli.log_level", "Show or set log levels of a running broker."),
    "replication": ("tandemmq.cli.replication", "Show and change a replicated set."),
    "failover": ("tandemmq.cli.failover_explain", "Explain the last changes of masters."),
    "config": ("tandemmq.cli.config", "Check or show the settings."),
    "user": ("tandemmq.cli.user", "Edit the file of users."),
    "store": ("tandemmq.cli.store", "Show, check, shrink and move a data directory."),
    "backup": ("tandemmq.cli.backup", "Copy the store of a running pair."),
    "restore": ("tandemmq.cli.backup", "Restore a backup into an empty data directory."),
    "doctor": ("tandemmq.cli.doctor.command", "Check a volume or a replicated set; list failures."),
    "simulate": ("tandemmq.cli.simulate", "Run brokers in virtual time with faults from a seed."),
    "pipeline": ("tandemmq.cli.pipeline", "Analyse, archive and replay journals."),
    "completion": ("tandemmq.cli.completion", "Print a completion script for a shell."),
    "man": ("tandemmq.cli.man", "Print or write manual pages."),
    "bench": ("tandemmq.cli.bench", "Measure a STOMP broker under load."),
}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, prog_name="tandemmq", message=f"%(prog)s, version %(version)s ({compiled.description()})"
)
def main() -> None:
    """TandemMQ: a highly available message broker. Two brokers, one store directory, nothing lost."""
