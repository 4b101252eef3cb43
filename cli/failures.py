"""The end of a command: one of four exit codes, and one line about the failure, as JSON with --json.

    0 done    1 failed    2 wrong usage or settings    3 no broker or no master reachable

There is no other code: Ctrl-C and a closed pipe (`| head`) give 1, since the command did not complete. A bug gives 1
and one line; TANDEMMQ_DEBUG=1 shows the traceback.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

EXIT_FAILED: Final = 1
EXIT_WRONG_USAGE: Final = 2
EXIT_NO_BROKER: Final = 3
DEBUG: Final = "TANDEMMQ_DEBUG"
JSON: Final = "--json"

_CODES: Final = range(4)


class Failed(click.ClickException):
    """Ends the command: it could not do its work. ``facts``: further entries of the JSON."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts


class Unreachable(Failed):
    """Ends the command: no broker answers, or none of them is master."""

    exit_code = EXIT_NO_BROKER


def exit_code_of(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run a command that was given these arguments. Return its exit code when all of its output is written."""
    try:
        ended = command()
        code = ended if isinstance(ended, int) else 0
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as end:
        code = _code_of(end)
    except click.ClickException as error:
        code = error.exit_code
        _say(error.format_message(), code, arguments, error)
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_FAILED
        _say("interrupted", code, arguments)
    except BrokenPipeError:
        code = EXIT_FAILED  # the reader of the output has ended
    except Exception as error:
        code = EXIT_FAILED
        if os.environ.get(DEBUG):
            traceback.print_exc()
        _say(_in_a_line(error), code, arguments)
    _drop_output()
    return code if code in _CODES else EXIT_FAILED


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    click.echo(end.code, err=True)
    return EXIT_FAILED


def _say(text: str, code: int, arguments: Sequence[str], error: click.ClickException | None = None) -> None:
    """Print to people on stderr, to a program as an object on stdout, on a line of its own."""
    if is_json_asked(arguments):
        facts = error.facts if isinstance(error, Failed) else {}
        try:
            click.echo(json.dumps({"error": text, "code": code} | facts, default=str))
        except OSError:  # a full disk or a closed pipe: print to people instead
            pass
        else:
            return
    with contextlib.suppress(OSError):
        if error is not None:
            error.show()
        else:
            click.echo(f"Error: {text}", err=True)


def is_json_asked(arguments: Sequence[str]) -> bool:
    """Return whether `--json` is among the options. Searched in the text, since wrong arguments are never parsed."""
    return JSON in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _in_a_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{Path(where.filename).name}:{where.lineno}"
    text = " ".join(str(error).split())
    return f"a bug: {type(error).__name__}: {text} (at {at}); {DEBUG}=1 shows the traceback"


def standard_streams_open() -> None:
    """Open the null device for each of the three standard streams that is closed (`2>&-`). Otherwise the next file that
    is opened would get its number, and the output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def _drop_output() -> None:
    """Drop output that can no longer be written: the interpreter would try again at its end, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
