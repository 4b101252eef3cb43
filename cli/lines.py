"""Lines of text for people."""

from __future__ import annotations

from collections.abc import Iterable

import click


def say_each(label: str, texts: Iterable[object], *, is_error: bool = False) -> None:
    """Print each of ``texts`` behind the ``label``, on a line of its own."""
    for text in texts:
        click.echo(f"{label}{text}", err=is_error)
