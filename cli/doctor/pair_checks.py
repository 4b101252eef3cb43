"""Checks of a volume with two processes: a lock excludes the other process, and ends with its holder; the other process
sees new names and bytes at once.

The fence check of a master (docs/architecture.md) is correct only if its stat sees a name that was linked before. So a
name that is seen too late, even once, is a failure, whatever the delay.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tandemmq.cli.doctor.remote_probe import ProbePair
from tandemmq.cli.doctor.report import Finding, fail, ok, warn

RELEASE_SECONDS_MAX = 10.0
#: A standby tries several times a second. If a lock outlives its holder for longer than this, clients notice an outage.
RELEASE_SECONDS_GOOD = 1.0
RACES = 300
ROUNDS = 25
#: Longer than caches of names and attributes usually live (NFS: 60 s at most by default). A check waits for this time
#: at most once: a name that is seen late has failed the check, and only the delay is still to be measured.
LATE_SECONDS_MAX = 65.0


# ---- locks


def exclusion(pair: ProbePair) -> Finding:
    """Check that a lock that one process holds is refused to the other, in both directions."""
    for number, (one, other, holder, asker) in enumerate(pair.directions):
        name = f"lock-{number}"
        pair.local.write(name, "lock")
        try:
            if not one.hold(name):
                return fail(f"{holder} was refused a lock that no process holds")
            if other.is_free(name):
                return fail(f"{asker} was given the lock that {holder} holds: two brokers would be masters")
        finally:
            one.kill_holder()
    return ok("an fcntl lock that one process holds is refused to the other, in both directions")


def release(pair: ProbePair) -> Finding:
    """Measure how soon the other process gets the lock after its holder is killed with SIGKILL."""
    slowest = 0.0
    for number, (one, other, _, asker) in enumerate(pair.directions):
        name = f"released-{number}"
        pair.local.write(name, "lock")
        one.hold(name)
        if other.is_free(name):
            one.kill_holder()
            return fail("not tested: the lock is free for the other while it is held")
        started = time.monotonic()
        one.kill_holder()
        if not other.wait_free(name, RELEASE_SECONDS_MAX):
            sentence = f"{RELEASE_SECONDS_MAX:g} s after its holder was killed the lock is still refused to {asker}"
            return fail(sentence + ": no standby would take over")
        slowest = max(slowest, time.monotonic() - started)
    sentence = f"after kill -9 of its holder the other process has the lock within {slowest * 1000:.0f} ms"
    say = ok if slowest <= RELEASE_SECONDS_GOOD else warn
    return say(sentence, release_ms=round(slowest * 1000, 1))


def another_descriptor(pair: ProbePair) -> Finding:
    """Report whether closing any descriptor of the file drops the lock, as POSIX requires. The broker works in both
    cases."""
    pair.local.write("closed", "lock")
    try:
        pair.local.hold("closed", closes_another=True)
        is_dropped = pair.remote.is_free("closed")
    finally:
        pair.local.kill_holder()
    sentence = "drops the lock, as POSIX requires" if is_dropped else "keeps the lock"
    return ok(f"closing another descriptor of the file {sentence}", drops_lock=is_dropped)


def other_family(pair: ProbePair) -> Finding:
    """Report whether flock(2) and fcntl(2) exclude each other, as on NFS. The broker uses fcntl, as in ActiveMQ."""
    pair.local.write("flock", "lock")
    try:
        pair.local.hold("flock")
        is_apart = pair.remote.is_free("flock", by_flock=True)
    except OSError as error:
        return ok(f"there is no flock here ({error.strerror}); the broker uses fcntl")
    finally:
        pair.local.kill_holder()
    text = "flock does not see fcntl locks; the broker uses fcntl" if is_apart else "flock and fcntl exclude each other"
    return ok(text, is_apart=is_apart)


# ---- names and contents


def link_race(pair: ProbePair) -> Finding:
    """Check that link(2) gives a name to exactly one process: this is the fence."""
    return _race("link", "race_links", pair)


def create_race(pair: ProbePair) -> Finding:
    """Check that O_EXCL creates a name for exactly one process."""
    return _race("create", "race_creates", pair)


def _race(prefix: str, verb: str, pair: ProbePair) -> Finding:
    finish = pair.remote.begin(verb, prefix=f"{prefix}-", rounds=RACES)
    ours: list[int] = getattr(pair.local, verb)(f"{prefix}-", RACES)
    theirs: list[int] = finish()
    both, nobody = set(ours) & set(theirs), set(range(RACES)) - set(ours) - set(theirs)
    figures = {"races": RACES, "won": len(ours), "won_by_the_second": len(theirs)}
    if both:
        return fail(f"in {len(both)} of {RACES} races both won: no fence holds here", **figures)
    if nobody:
        return fail(f"in {len(nobody)} of {RACES} races neither won", **figures)
    return ok(f"{RACES} races, each won by exactly one ({len(ours)} : {len(theirs)})", **figures)


def appearance(pair: ProbePair) -> Finding:
    """Check that the other process sees, at its first stat, a name that was missing and has just been linked."""
    return _seen_at_once(
        pair,
        True,
        "the other process sees a linked file at its first stat",
        "a file that {one} linked was missing for {other} for {late}: a master could not see its successor",
        fail,
    )


def removal(pair: ProbePair) -> Finding:
    """Check that the other process does not see, at its first stat, a name that existed and has just been removed."""
    return _seen_at_once(
        pair,
        False,
        "the other process no longer sees a removed file at its first stat",
        "{other} still saw a file that {one} removed for {late}: a master that slept may not see that it was "
        "replaced (on NFS: lookupcache=none)",
        warn,
    )


def _seen_at_once(pair: ProbePair, is_linked: bool, good: str, bad: str, say_late: Callable[..., Finding]) -> Finding:
    """Link a name, or else remove it, and stat it from the other process."""
    for direction, (one, other, who_does, who_watches) in enumerate(pair.directions):
        for number in range(ROUNDS):
            name = f"{'new' if is_linked else 'old'}-{direction}-{number}"
            source = f"source-{direction}-{number}"
            one.write(source if is_linked else name, name)
            for _ in range(2):  # the second answer may come from a cache
                other.look(name, not is_linked, 0)
            if is_linked:
                one.link(source, name)
            else:
                one.unlink(name)
            started = time.monotonic()
            if other.look(name, is_linked, LATE_SECONDS_MAX)["is_first"]:
                continue
            late = time.monotonic() - started
            text = f"{late * 1000:.0f} ms" if late < LATE_SECONDS_MAX else f"more than {LATE_SECONDS_MAX:g} s"
            sentence = bad.format(one=who_does, other=who_watches, late=text)
            return say_late(sentence, late_ms=round(late * 1000, 1))
    return ok(f"{good}, {2 * ROUNDS} times of {2 * ROUNDS}", late_ms=0)


def contents(pair: ProbePair) -> Finding:
    """Check that the other process reads synced bytes, after a new open and through an open descriptor."""
    is_old_descriptor_late = False
    for direction, (one, other, writer, reader) in enumerate(pair.directions):
        name = f"text-{direction}"
        one.write(name, f"{0:08}")
        other.keep(name)
        for text in (f"{number:08}" for number in range(1, ROUNDS)):
            one.write(name, text)
            is_old_descriptor_late |= other.read_kept(name) != text
            if other.read(name) != text:
                return fail(f"{reader} opened a file and missed what {writer} had synced: a successor would lose it")
    if is_old_descriptor_late:
        return warn("synced bytes are read after an open, but late through an open descriptor: a standby lags behind")
    return ok("the other process reads synced bytes at once")


def rename_over(pair: ProbePair) -> Finding:
    """Check a rename over an open file: an open descriptor keeps the old bytes, a new open gets the new ones."""
    for direction, (one, other, _, reader) in enumerate(pair.directions):
        name, fresh = f"renamed-{direction}", f"fresh-{direction}"
        one.write(name, "old")
        other.keep(name)
        one.write(fresh, "new")
        one.rename(fresh, name)
        if (found := other.read(name)) != "new":
            return fail(f"{reader} read {found!r} after a rename of a file that contains 'new'")
        try:
            kept = other.read_kept(name)
        except OSError as error:
            return warn(
                f"{reader} had a file open that was replaced: {error.strerror}, as on NFS; a broker opens it again"
            )
        if kept != "old":
            return fail(f"{reader} had a file open, and reads the one that replaced it")
    return ok("a rename over an open file leaves the old file to open descriptors")


def inodes(pair: ProbePair) -> Finding:
    """Check that an inode number identifies a file: it is stable, and not reused while the file is open."""
    if not pair.local.is_inode_stable("stable"):
        return fail("an open file changes its number: a broker would not recognize its own files")
    if pair.local.is_inode_reused("reused"):
        return fail("the number of an open file is given to another: a replaced file would go unnoticed")
    return ok("a file keeps its number, and no other gets it while it is open")


CHECKS = (
    ("lock excludes", exclusion),
    ("lock ends with its holder", release),
    ("lock and close", another_descriptor),
    ("flock and fcntl", other_family),
    ("link is atomic", link_race),
    ("O_EXCL is atomic", create_race),
    ("new names are seen", appearance),
    ("removed names are missed", removal),
    ("synced bytes are read", contents),
    ("rename replaces", rename_over),
    ("inode numbers hold", inodes),
)
