"""Names: is link(2) decided for one alone, and does the other see at once what appeared, went, or was written?

The look of a master (docs/architecture.md) is right only if a name that was linked before its stat is seen by it. So
one look that comes too late is a failure, whatever the delay.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from broker.doctor.ground import Ground
from broker.doctor.hand import Hand
from broker.doctor.report import Finding, fail, ok, warn

RACES = 300
ROUNDS = 25
#: Longer than caches of names and attributes usually live (NFS: 60 s at most by default). Waited once, in the first
#: round that is late, for then the volume has failed and only the figure is wanted.
LATE_SECONDS_MAX = 65.0


def link_race(ground: Ground) -> Finding:
    """link(2) makes a name for exactly one: this is the fence."""
    return _race("link", ground.far.begin, ground.near.race_links, "race_links")


def create_race(ground: Ground) -> Finding:
    """O_EXCL creates a name for exactly one."""
    return _race("create", ground.far.begin, ground.near.race_creates, "race_creates")


def _race(
    prefix: str,
    begin: Callable[..., Callable[[], list[int]]],
    run: Callable[[str, int], list[int]],
    verb: str,
) -> Finding:
    finish = begin(verb, prefix=f"{prefix}-", rounds=RACES)
    ours = run(f"{prefix}-", RACES)
    theirs = finish()
    both, nobody = set(ours) & set(theirs), set(range(RACES)) - set(ours) - set(theirs)
    figures = {"races": RACES, "won": len(ours), "won_by_the_second": len(theirs)}
    if both:
        return fail(f"in {len(both)} of {RACES} races both won: no fence holds here", **figures)
    if nobody:
        return fail(f"in {len(nobody)} of {RACES} races nobody won", **figures)
    return ok(f"{RACES} races, each won by one alone ({len(ours)} : {len(theirs)})", **figures)


def appearance(ground: Ground) -> Finding:
    """A name that was missing a moment ago is linked: does the first look of the other see it?"""

    def appear(one: Hand, other: Hand, round_: str) -> float | None:
        name = f"new-{round_}"
        one.write(f"source-{round_}", round_)
        for _ in range(2):  # the second answer may come from a memory of the first
            other.look(name, False, 0)
        return _lateness(other, name, True, lambda: one.link(f"source-{round_}", name))

    return _seen_at_once(
        ground,
        appear,
        "a file that one links is there at the other's first look",
        "a file that {one} linked was missing for {other} for {late}: a master could not see its successor",
        fail,
    )


def removal(ground: Ground) -> Finding:
    """A name that was there a moment ago is removed: does the first look of the other miss it?"""

    def vanish(one: Hand, other: Hand, round_: str) -> float | None:
        name = f"old-{round_}"
        one.write(name, round_)
        for _ in range(2):
            other.look(name, True, 0)
        return _lateness(other, name, False, lambda: one.unlink(name))

    return _seen_at_once(
        ground,
        vanish,
        "a file that one removes is gone at the other's first look",
        "a file that {one} removed was there for {other} for {late}: a master that slept may not see that it was "
        "replaced (on NFS: lookupcache=none)",
        warn,
    )


def _lateness(watcher: Hand, name: str, is_there: bool, act: Callable[[], None]) -> float | None:
    """Seconds until the watcher saw what was done; None when it was so at the first look."""
    act()
    started = time.monotonic()
    look = watcher.look(name, is_there, LATE_SECONDS_MAX)
    return None if look["is_first"] else time.monotonic() - started


def _seen_at_once(
    ground: Ground,
    try_once: Callable[[Hand, Hand, str], float | None],
    good: str,
    bad: str,
    say_late: Callable[..., Finding],
) -> Finding:
    for direction, (one, other, who_does, who_watches) in enumerate(ground.directions):
        for round_ in range(ROUNDS):
            late = try_once(one, other, f"{direction}-{round_}")
            if late is not None:
                text = f"{late * 1000:.0f} ms" if late < LATE_SECONDS_MAX else f"more than {LATE_SECONDS_MAX:g} s"
                sentence = bad.format(one=who_does, other=who_watches, late=text)
                return say_late(sentence, late_ms=round(late * 1000, 1))
    return ok(f"{good}, {2 * ROUNDS} times of {2 * ROUNDS}", late_ms=0)


def contents(ground: Ground) -> Finding:
    """What one wrote and synced: does the other read it, opened afresh, and through a descriptor that was open?"""
    is_old_descriptor_late = False
    for direction, (one, other, writer, reader) in enumerate(ground.directions):
        name = f"text-{direction}"
        one.write(name, f"{0:08}")
        other.keep(name)
        for text in (f"{number:08}" for number in range(1, ROUNDS)):
            one.write(name, text)
            is_old_descriptor_late |= other.read_kept(name) != text
            if other.read(name) != text:
                return fail(f"{reader} opened a file and missed what {writer} had synced: a successor would lose it")
    if is_old_descriptor_late:
        return warn("synced bytes are read by who opens the file, but late by who has it open: a standby lags behind")
    return ok("what one synced the other reads at once")


def rename_over(ground: Ground) -> Finding:
    """A rename over an open file: the old bytes for who has it open, the new ones for who opens it."""
    for direction, (one, other, _, reader) in enumerate(ground.directions):
        name, fresh = f"renamed-{direction}", f"fresh-{direction}"
        one.write(name, "old")
        other.keep(name)
        one.write(fresh, "new")
        one.rename(fresh, name)
        if (found := other.read(name)) != "new":
            return fail(f"{reader} read {found!r} after a rename that says 'new'")
        try:
            kept = other.read_kept(name)
        except OSError as error:
            return warn(
                f"{reader} had a file open that was replaced: {error.strerror}, as on NFS; a broker opens it anew"
            )
        if kept != "old":
            return fail(f"{reader} had a file open, and reads the one that replaced it")
    return ok("a rename over an open file leaves it to who has it open")


def inodes(ground: Ground) -> Finding:
    """The number of a file tells it from another: stable, and not given out again while it is open."""
    if not ground.near.is_inode_stable("stable"):
        return fail("an open file changes its number: a broker would take its own files for somebody else's")
    if ground.near.is_inode_reused("reused"):
        return fail("the number of an open file is given to another: a replaced file would go unnoticed")
    return ok("a file keeps its number, and no other gets it while it is open")


CHECKS = (
    ("link is atomic", link_race),
    ("O_EXCL is atomic", create_race),
    ("new names are seen", appearance),
    ("removed names are missed", removal),
    ("synced bytes are read", contents),
    ("rename replaces", rename_over),
    ("inode numbers hold", inodes),
)
