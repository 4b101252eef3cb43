"""`tandemmq doctor storage`: the examination, from the mount's options to races with the second process."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tandemmq.cli.doctor import durability, locks, names
from tandemmq.cli.doctor.local_probe import LocalProbe
from tandemmq.cli.doctor.probe_pair import ProbePair
from tandemmq.cli.doctor.remote_probe import NoRemoteProbe, RemoteProbe, fork_remote_probe
from tandemmq.cli.doctor.report import Check, Finding, Report, fail, ok, warn
from tandemmq.store.volume import Mount, mount_under, objections

HERE = "another process on this host"
UNTESTED = (
    "that a power cut loses nothing, and that the lock of a host without power is released: test by cutting the power "
    "(an NFSv4 server waits its lease out, 90 s by default)"
)

Progress = Callable[[str], None]


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
    for name, check in (*locks.CHECKS, *names.CHECKS):
        yield _tried(name, partial(check, pair), progress)


def mount_checks(mount: Mount | None) -> Iterator[Check]:
    """Check the mount against the known-bad mounts (`store.volume`). A kind that is not listed is left to the tests."""
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
