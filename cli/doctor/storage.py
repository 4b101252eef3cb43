"""``tandemmq doctor storage``: check whether a volume provides what a pair of brokers requires.

The examination goes from the options of the mount to races with a second process. It works in a scratch directory on
the volume, always removes it, and opens no file of a broker.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import NoReturn

import click

from tandemmq.cli.doctor import durability, pair_checks
from tandemmq.cli.doctor.local_probe import LocalProbe
from tandemmq.cli.doctor.remote_probe import NoRemoteProbe, ProbePair, RemoteProbe, connect, fork_remote_probe, listen
from tandemmq.cli.doctor.report import Check, Finding, Report, Verdict, as_lines, fail, ok, warn
from tandemmq.cli.failures import EXIT_FAILED, Failed
from tandemmq.cli.output import json_option, tell
from tandemmq.store.volume import Mount, mount_under, objections

PORT_MAX = 65535
HERE = "another process on this host"
UNTESTED = (
    "that a power cut loses nothing, and that the lock of a host without power is released: test by cutting the power "
    "(an NFSv4 server releases it when its lease ends, by default after 90 s)"
)

Progress = Callable[[str], None]


def address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Parse HOST:PORT, with brackets around an IPv6 address."""
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
    tell(as_json, {"examiner": examiner}, f"checked together with {examiner}; the report is on that host")


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


# ---- the examination


def examine(directory: str, remote_probe: RemoteProbe | None = None, progress: Progress = lambda name: None) -> Report:
    """Examine the volume of ``directory`` together with ``remote_probe``, which is closed at the end; None: fork one.

    ``progress`` is called with the name of each check before it begins. Takes seconds on a good volume, and minutes on
    a bad one. Raises NoRemoteProbe when the other process is lost or sees another directory, OSError when nothing can
    be created. Leaves nothing behind, even when interrupted. For a process without other threads.
    """
    who = HERE if remote_probe is None else remote_probe.name
    with _scratch(directory) as scratch:
        other = fork_remote_probe(directory) if remote_probe is None else remote_probe
        local = LocalProbe(scratch)
        try:
            if not other.enter(os.path.basename(scratch)):
                raise NoRemoteProbe(f"{who} does not see {scratch}: is its directory on the same volume?")
            mount = mount_under(directory)
            pair = ProbePair(local, other, "the second process" if remote_probe is None else "the other host")
            return Report(directory, who, list(_checks(mount, scratch, pair, progress)))
        finally:
            local.close()
            other.close()


@contextmanager
def _scratch(directory: str) -> Iterator[str]:
    path = os.path.join(directory, f".doctor-{uuid.uuid4().hex}")
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # the other process may have been first
        if os.path.isdir(path):
            shutil.rmtree(path)


def _checks(mount: Mount | None, scratch: str, pair: ProbePair, progress: Progress) -> Iterator[Check]:
    yield from mount_checks(mount)
    if (found := durability.device(mount)) is not None:
        yield Check("device", found)
    yield _tried("room", lambda: durability.judge_room(os.statvfs(scratch)), progress)
    yield _tried("sync takes its time", partial(durability.syncs, scratch, mount), progress)
    yield _tried("directory can be synced", partial(durability.directory_sync, scratch), progress)
    for name, check in pair_checks.CHECKS:
        yield _tried(name, partial(check, pair), progress)


def mount_checks(mount: Mount | None) -> Iterator[Check]:
    """Check the mount against the known-bad mounts (`store.volume`). Only the other checks judge other kinds."""
    if mount is None:
        yield Check("mount", warn("the mount of this directory is unknown (no /proc/self/mountinfo)"))
        return
    place = f"{mount.kind} ({mount.source}) mounted at {mount.point}"
    yield Check("mount", ok(place, kind=mount.kind, point=mount.point, options=",".join(sorted(mount.options))))
    for objection in objections(mount):
        say = fail if objection.is_grave else warn
        yield Check(f"mount: {objection.name}", say(str(objection), concern=objection.concern.value))


def _tried(name: str, check: Callable[[], Finding], progress: Progress) -> Check:
    progress(name)
    try:
        return Check(name, check())
    except OSError as error:
        code = "" if error.errno is None else f" (errno {error.errno})"
        return Check(name, fail(f"cannot be done here: {error.strerror or error}{code}"))
