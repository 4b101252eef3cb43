"""Checks of POSIX record locks: they exclude, and they end with their holder."""

from __future__ import annotations

import time

from tandemmq.cli.doctor.probe_pair import ProbePair
from tandemmq.cli.doctor.report import Finding, fail, ok, warn

RELEASE_SECONDS_MAX = 10.0
#: A standby tries several times a second. A lock that outlives its holder for longer than this is an outage by itself.
RELEASE_SECONDS_GOOD = 1.0


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
    """Report whether closing any descriptor of the file drops the lock, as POSIX requires. The broker works with
    both."""
    pair.local.write("closed", "lock")
    try:
        pair.local.hold("closed", closes_another=True)
        is_dropped = pair.remote.is_free("closed")
    finally:
        pair.local.kill_holder()
    sentence = "drops the lock, as POSIX requires" if is_dropped else "keeps the lock"
    return ok(f"closing another descriptor of the file {sentence}", drops_lock=is_dropped)


def other_family(pair: ProbePair) -> Finding:
    """Report whether flock(2) and fcntl(2) locks are one, as on NFS. The broker uses fcntl, as ActiveMQ does."""
    pair.local.write("flock", "lock")
    try:
        pair.local.hold("flock")
        is_apart = pair.remote.is_free("flock", by_flock=True)
    except OSError as error:
        return ok(f"there is no flock here ({error.strerror}); fcntl is what counts")
    finally:
        pair.local.kill_holder()
    text = "flock does not see fcntl locks; fcntl is what counts" if is_apart else "flock and fcntl exclude each other"
    return ok(text, is_apart=is_apart)


CHECKS = (
    ("lock excludes", exclusion),
    ("lock ends with its holder", release),
    ("lock and close", another_descriptor),
    ("flock and fcntl", other_family),
)
