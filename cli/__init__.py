"""The command line. Each family of commands stands in a file of its own and is imported only when it is asked for.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 no broker or no master reachable.
"""

from __future__ import annotations

from typing import Final

import click

from tandemmq import __version__, compiled
from tandemmq.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "run": ("tandemmq.cli.run", "Run a broker: master if the lock is free, else standby."),
    "send": ("tandemmq.cli.client", "Send messages; resends what had no receipt after a failover."),
    "receive": ("tandemmq.cli.client", "Receive and acknowledge messages."),
    "queues": ("tandemmq.cli.queues", "Queues: list, create, delete, purge, pause, resume."),
    "topics": ("tandemmq.cli.queues", "Topics: list, create, delete."),
    "browse": ("tandemmq.cli.messages", "Show messages of a queue; nothing is taken."),
    "move": ("tandemmq.cli.messages", "Move messages to another destination."),
    "copy": ("tandemmq.cli.messages", "Copy messages to another destination."),
    "retry": ("tandemmq.cli.messages", "Send dead letters back to where they died."),
    "connections": ("tandemmq.cli.connections", "Who is connected: list, close."),
    "consumers": ("tandemmq.cli.connections", "Who takes messages, and who is slow."),
    "subscriptions": ("tandemmq.cli.connections", "Durable subscriptions: list, delete."),
    "tasks": ("tandemmq.cli.connections", "What move, copy, purge and retry do: list, stop."),
    "top": ("tandemmq.cli.top", "The busiest queues, live."),
    "status": ("tandemmq.cli.status", "What a running broker says of itself."),
    "handover": ("tandemmq.cli.handover", "Let the other broker be master, as planned."),
    "lock": ("tandemmq.cli.lock", "Who holds the lock, and who waits for it."),
    "log-level": ("tandemmq.cli.log_level", "How much a running broker logs, while it runs."),
    "replication": ("tandemmq.cli.replication", "A replicated set: its members, and who belongs to it."),
    "failover": ("tandemmq.cli.failover_explain", "What happened at the last change of masters."),
    "config": ("tandemmq.cli.config", "Check or show the settings."),
    "user": ("tandemmq.cli.user", "Who may connect: the file of users."),
    "store": ("tandemmq.cli.store", "Look into a data directory."),
    "backup": ("tandemmq.cli.backup", "A copy of what is stored, from a running pair."),
    "restore": ("tandemmq.cli.backup", "Put a backup into an empty data directory."),
    "doctor": ("tandemmq.cli.doctor.command", "Examine what a pair stands on: its volume, its errors."),
    "simulate": ("tandemmq.cli.simulate", "Brokers in virtual time, through faults that a seed decides."),
    "pipeline": ("tandemmq.cli.pipeline", "Ask the journals of many brokers, with Spark."),
    "completion": ("tandemmq.cli.completion", "Let a shell complete commands and options."),
    "man": ("tandemmq.cli.man", "Manual pages of all commands."),
    "bench": ("tandemmq.cli.bench", "Drive load against any STOMP broker and measure."),
}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, prog_name="tandemmq", message=f"%(prog)s, version %(version)s ({compiled.description()})"
)
def main() -> None:
    """TandemMQ: a highly available message broker. Two brokers, one store directory, nothing lost."""
