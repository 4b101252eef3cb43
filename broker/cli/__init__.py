"""The command line. Each family of commands stands in a file of its own and is imported only when it is asked for.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 no broker or no master reachable.
"""

from __future__ import annotations

from typing import Final

import click

from broker.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "run": ("broker.cli.run", "run", "Run a broker: master if the lock is free, else standby."),
    "send": ("broker.cli.client", "send", "Send messages; resends what had no receipt after a failover."),
    "receive": ("broker.cli.client", "receive", "Receive and acknowledge messages."),
    "status": ("broker.cli.status", "status", "What a running broker says of itself."),
    "handover": ("broker.cli.handover", "handover", "Let the other broker be master, as planned."),
    "lock": ("broker.cli.lock", "lock", "Who holds the lock, and who waits for it."),
    "failover": ("broker.cli.failover_explain", "failover", "What happened at the last change of masters."),
    "config": ("broker.cli.config", "config", "Check or show the settings."),
    "user": ("broker.cli.user", "user", "Who may connect: the file of users."),
    "store": ("broker.cli.store", "store", "Look into a data directory."),
    "doctor": ("broker.cli.doctor", "doctor", "Examine what a pair stands on: its volume, its errors."),
    "simulate": ("broker.cli.simulate", "simulate", "Brokers in virtual time, through faults that a seed decides."),
    "pipeline": ("broker.cli.pipeline", "pipeline", "Ask the journals of many brokers, with Spark."),
    "bench": ("broker.cli.bench", "bench", "Drive load against any STOMP broker and measure."),
}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tandemmq", prog_name="tandemmq")
def main() -> None:
    """TandemMQ: a highly available message broker. Two brokers, one store directory, nothing lost."""
