"""``tandemmq completion``: the script by which a shell completes commands, options and choices."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

#: Name that click expects for a program of this name.
VARIABLE = "_TANDEMMQ_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL, to be read when the shell starts.

    \b
    bash: tandemmq completion bash > ~/.local/share/bash-completion/completions/tandemmq
    zsh:  tandemmq completion zsh > DIRECTORY/_tandemmq, where DIRECTORY is in fpath
    fish: tandemmq completion fish > ~/.config/fish/completions/tandemmq.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "tandemmq", VARIABLE).source())
