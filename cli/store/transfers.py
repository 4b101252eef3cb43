"""Results of ``import`` and ``export``: counts and hashes of source and target, side by side."""

from __future__ import annotations

import json
from typing import Any

import click

from tandemmq.cli.output import Column, print_table, say_each
from tandemmq.store.migration.proof import Proof, Sum
from tandemmq.store.migration.transfer import Carried

HASH_CHARS = 16  # of the hash, in a table; JSON has all of it


_COUNTED = ("copied", "skipped", "subscriptions", "transactions", "left_aside")


def show(carried: Carried, notes: list[str], as_json: bool) -> None:
    """Print the outcome of a transfer, for people or for programs."""
    done = carried.transfer
    if as_json:
        click.echo(
            json.dumps(
                {
                    "proved": not carried.differences,
                    **{name: getattr(done, name) for name in _COUNTED},
                    "notes": notes,
                    "destinations": [
                        {"name": name, "source": described(sum), "target": described(carried.target.get(name))}
                        for name, sum in done.source.items()
                    ],
                    "differences": carried.differences,
                }
            )
        )
        return
    print_table(
        [Column("destination"), Column("in"), *SUM_COLUMNS],
        (
            [name, side, *cells(sum)]
            for name, source in done.source.items()
            for side, sum in (("source", source), ("target", carried.target.get(name)))
        ),
    )
    say_each("left aside: ", (*done.left_aside, *notes))
    say_each("DIFFERENT: ", carried.differences)
    click.echo(
        f"{'NOT proved' if carried.differences else 'proved'}: {done.copied} messages copied, "
        f"{done.skipped} were there already, {done.subscriptions} subscriptions and "
        f"{done.transactions} prepared transactions begun"
    )


def described(sum: Sum | None) -> dict[str, Any] | None:
    """Return a Sum for a program."""
    return None if sum is None else {"messages": sum.count, "bytes": sum.bytes, "sha256": sum.digest}


#: Columns of a Sum in a table.
SUM_COLUMNS = (Column("messages", is_number=True), Column("bytes", is_number=True), Column("sha256"))


def cells(sum: Sum | None) -> list[object]:
    """Return a Sum for people, in the order of SUM_COLUMNS."""
    return [0, 0, None] if sum is None else [sum.count, sum.bytes, sum.digest[:HASH_CHARS]]


def proof_as_json(proof: Proof) -> list[dict[str, Any]]:
    """Return one entry for each queue, subscription and prepared transaction."""
    return [{"name": name, **(described(sum) or {})} for name, sum in proof.items()]
