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
    "send": ("tandemmq.cli.client", "Send messages, and resend unconfirmed ones after a failover."),
    "receive": ("tandemmq.cli.client", "Receive and acknowledge messages."),
    "queues": ("tandemmq.cli.queues", "Queues: list, create, delete, purge, pause, resume."),
    "topics": ("tandemmq.cli.queues", "Topics: list, create, delete."),
    "browse": ("tandemmq.cli.messages", "Show messages of a queue without consuming them."),
    "move": ("tandemmq.cli.messages", "Move messages to another destination."),
    "copy": ("tandemmq.cli.messages", "Copy messages to another destination."),
    "retry": ("tandemmq.cli.messages", "Send dead letters back to the destinations that they came from."),
    "connections": ("tandemmq.cli.connections", "Connections of clients: list, close."),
    "consumers": ("tandemmq.cli.connections", "Consumers, and why one is slow."),
    "subscriptions": ("tandemmq.cli.connections", "Durable subscriptions: list, delete."),
    "tasks": ("tandemmq.cli.connections", "Tasks of move, copy, purge and retry: list, stop."),
    "top": ("tandemmq.cli.top", "The busiest queues, live."),
    "status": ("tandemmq.cli.status", "Status of a running broker."),
    "handover": ("tandemmq.cli.handover", "Planned change of master."),
    "lock": ("tandemmq.cli.lock", "Holder of the lock, and the brokers that wait for it."),
    "log-level": ("tandemmq.cli.log_level", "Show or set the log levels of a running broker."),
    "replication": ("tandemmq.cli.replication", "A replicated set: show, add and remove members."),
    "failover": ("tandemmq.cli.failover_explain", "Timeline of the last failover."),
    "config": ("tandemmq.cli.config", "Check or show the settings."),
    "user": ("tandemmq.cli.user", "Edit the file of users."),
    "store": ("tandemmq.cli.store", "Examine and maintain a data directory."),
    "backup": ("tandemmq.cli.backup", "Copy the store of a running pair."),
    "restore": ("tandemmq.cli.backup", "Put a backup into an empty data directory."),
    "doctor": ("tandemmq.cli.doctor.command", "Examine the volume of a pair, the settings of a set, the errors."),
    "simulate": ("tandemmq.cli.simulate", "Run brokers in virtual time, with faults that a seed chooses."),
    "pipeline": ("tandemmq.cli.pipeline", "Query the journals of many brokers, with Spark."),
    "completion": ("tandemmq.cli.completion", "Shell completion of commands and options."),
    "man": ("tandemmq.cli.man", "Manual pages of all commands."),
    "bench": ("tandemmq.cli.bench", "Drive load against any STOMP broker and measure."),
}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, prog_name="tandemmq", message=f"%(prog)s, version %(version)s ({compiled.description()})"
)
def main() -> None:
    """TandemMQ: a highly available message broker. Two brokers, one store directory, nothing lost."""
