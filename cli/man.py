"""Manual pages and completion scripts for shells, generated from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from tandemmq import __version__

#: Environment variable with which a shell requests completions from a program of this name, as click names it.
VARIABLE: Final = "_TANDEMMQ_COMPLETE"
EXIT_STATUS: Final = (
    ("0", "Done."),
    ("1", "Failed, or ended by Ctrl-C or a closed pipe."),
    ("2", "Wrong usage or settings."),
    ("3", "No broker or no master reachable."),
)


@click.command()
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.option(
    "--to",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the pages of all commands to this directory, created if missing: ~/.local/share/man/man1.",
)
def man(words: tuple[str, ...], directory: Path | None) -> None:
    """Print the manual page of COMMAND, as in `tandemmq man store why | man -l -`, or write all pages."""
    root = click.get_current_context().find_root().command
    pages = {tuple(context.command_path.split()[1:]): context for context in contexts(root)}
    if directory is not None:
        if words:
            raise click.UsageError("give COMMAND or --to: a directory gets all pages")
        directory.mkdir(parents=True, exist_ok=True)
        for context in pages.values():
            (directory / f"{name_of(context)}.1").write_text(page(context), encoding="utf-8")
        click.echo(f"{len(pages)} pages in {directory}")
        return
    if words not in pages:
        raise click.UsageError(f"there is no command {' '.join(words)}")
    click.echo(page(pages[words]), nl=False)


def contexts(command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield contexts for the command and all commands below it."""
    context = click.Context(command, parent, "tandemmq" if parent is None else command.name)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, "a group has the commands that it lists"
            below.name = name
            yield from contexts(below, context)


def name_of(context: click.Context) -> str:
    """Return the page's name, such as `tandemmq-store-why`."""
    return "-".join(context.command_path.split())


def page(context: click.Context) -> str:
    """Return the page of one command, in the language of man(7)."""
    return "\n".join(_lines(context)) + "\n"


def _lines(context: click.Context) -> Iterator[str]:
    command, name = context.command, name_of(context)
    yield f'.TH "{_text(name.upper())}" 1 "" "TandemMQ {_text(__version__)}" "TandemMQ"'
    yield ".SH NAME"
    yield f"{_text(name)} \\- {_text(command.get_short_help_str(200).rstrip('.'))}"
    yield ".SH SYNOPSIS"
    words = [_text(word) for word in command.collect_usage_pieces(context)]
    yield f"\\fB{_text(' '.join(context.command_path.split()))}\\fR {' '.join(words)}"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.help or "")
    records = [(parameter.get_help_record(context), parameter) for parameter in command.get_params(context)]
    yield from _list("OPTIONS", [record for record, _ in records if record is not None])
    if isinstance(command, click.Group):
        below = [(each, command.get_command(context, each)) for each in command.list_commands(context)]
        yield from _list("COMMANDS", [(each, found.get_short_help_str(200)) for each, found in below if found])
        yield from _list("SEE ALSO", [(f"{name}-{each}(1)", "") for each, _ in below])
    variables = [
        (str(parameter.envvar), f"Stands for {parameter.opts[0]}.") for _, parameter in records if parameter.envvar
    ]
    yield from _list("ENVIRONMENT", variables)
    yield from _list("EXIT STATUS", EXIT_STATUS)


def _list(title: str, entries: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Iterator[str]:
    if entries:
        yield f".SH {title}"
    for term, text in entries:
        yield ".TP"
        yield f"\\fB{_text(term)}\\fR"
        yield _text(" ".join(text.split()))


def _paragraphs(help: str) -> Iterator[str]:
    """Yield paragraphs. They are filled, except those that begin with \\b, as in click."""
    for number, paragraph in enumerate(help.split("\n\n")):
        if number:
            yield ".PP"
        is_as_it_is = paragraph.lstrip().startswith("\b")
        if is_as_it_is:
            yield ".nf"
        yield from (_text(line.strip()) for line in paragraph.replace("\b", "").splitlines() if line.strip())
        if is_as_it_is:
            yield ".fi"


def _text(text: str) -> str:
    """Escape the text, so that it contains no request and no escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


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
