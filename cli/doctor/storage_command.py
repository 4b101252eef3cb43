"""``tandemmq doctor storage``: check whether a volume keeps what a pair relies on."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from tandemmq.cli.doctor.remote_probe import NoRemoteProbe, connect, listen
from tandemmq.cli.doctor.report import Report, Verdict, as_lines
from tandemmq.cli.doctor.storage import UNTESTED, examine
from tandemmq.cli.failures import EXIT_FAILED, Failed
from tandemmq.cli.output import json_option, tell

PORT_MAX = 65535


def address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """HOST:PORT, with brackets around an IPv6 address."""
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise click.BadParameter(f"{value!r} is not an address like storage-two:7777")
    return host.strip("[]"), int(port)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, writable=True))
@click.option("--peer", metavar="HOST:PORT", callback=address, help="Address of the other host, which runs --listen.")
@click.option(
    "--listen",
    "listens",
    metavar="HOST:PORT",
    callback=address,
    help="Address to listen on, for one check by the other host with --peer.",
)
@json_option
def storage(directory: str, peer: tuple[str, int] | None, listens: tuple[str, int] | None, as_json: bool) -> None:
    """Check whether the volume of DIRECTORY is safe for the store of a pair.

    Works in a temporary directory below DIRECTORY and changes nothing else; a broker may run. For a pair on two hosts
    start it with --listen on one host, then with --peer on the other.

    Exits with 1 if a check fails; a warning is not a failure.
    """
    if peer is not None and listens is not None:
        raise click.UsageError("--peer and --listen are for two hosts: give one of them")
    # SIGTERM, like Ctrl-C, must remove the scratch directory.
    signal.signal(signal.SIGTERM, _ended)
    try:
        if listens is not None:
            _listen(directory, *listens, as_json)
            return
        remote_probe = None if peer is None else connect(*peer)
        report = examine(directory, remote_probe, _progress if sys.stderr.isatty() else lambda name: None)
    except (NoRemoteProbe, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(report.as_json()) if as_json else as_text(report))
    sys.exit(EXIT_FAILED if report.verdict is Verdict.FAIL else 0)


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise Failed("ended by SIGTERM")


def _listen(directory: str, host: str, port: int, as_json: bool) -> None:
    def say(port: int) -> None:
        hint = f"listening on {host}:{port}; on the other host: tandemmq doctor storage DIR --peer HOST:{port}"
        click.echo(hint, err=as_json)

    examiner = listen(directory, host, port, say)
    tell(as_json, {"examiner": examiner}, f"examined together with {examiner}; the report is there")


def _progress(name: str) -> None:
    click.echo(f"{name} ...", err=True)


def as_text(report: Report) -> str:
    """Return one line for each check, and the conclusion."""
    conclusion = {
        Verdict.OK: "no problem was found on this volume",
        Verdict.WARN: "usable; read the warnings",
        Verdict.FAIL: "a pair must not have its store here",
    }[report.verdict]
    title = f"{report.directory}, together with {report.remote_probe}"
    return "\n".join([title, "", *as_lines(report.checks), "", conclusion, f"Not tested: {UNTESTED}."])
