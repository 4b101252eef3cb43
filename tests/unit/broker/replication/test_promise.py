"""The promise file: a promise is kept whatever fails and whenever the power fails."""

# proves: promise

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import random
import shutil
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.replication.promise import (
    LIVES_MAX,
    SLOT_BYTES,
    Origin,
    Promise,
    PromiseFile,
    PromiseFileInUse,
    PromiseLost,
    PromiseTooLong,
    PromiseUnknown,
    decode_slot,
    encode_slot,
    is_older,
    start_of,
)
from tandemmq.broker.replication.quorum import Founding, Voters
from tandemmq.store.membership import PROMISE_FILE
from tests.support.crash.crash_images import Disk as DiskModel
from tests.support.crash.explorer import scratch_directory
from tests.support.crash.failing_disk import Failed, FailingDisk, Failure
from tests.support.crash.recording_disk import Note, RecordingDisk
from tests.support.prove import rounds

FEW_IMAGES = rounds(1_000, 1_000, quick=5)  # of those after each event, where each call fails in turn
A, B, C = ("a" * 32, "b" * 32, "c" * 32)
FOUNDING = Founding("f" * 32, Voters((A, B), {A: "a1" * 100, B: "b1" * 100}))
MANY_LIVES = {f"{n:032x}": n for n in range(LIVES_MAX)}


def said(promise: Promise) -> Promise:
    """Return the promise without the fields that a start may change."""
    return replace(promise, life=0, is_met=False)


def reopened(directory: Path, node: str = "b1") -> tuple[Promise, Origin]:
    file = PromiseFile(str(directory), node)
    file.close()
    return file.promise, file.origin


def test_a_written_promise_is_read_again(tmp_path: Path) -> None:
    file = PromiseFile(str(tmp_path), "b1")
    assert file.origin is Origin.NEW
    first = file.promise
    assert first == Promise(None, first.store, "b1", first.life, 0, None, None, {})
    promised = replace(first, set=C, epoch=12, candidate=A, founding=FOUNDING, lives={A: 3, B: 7}, is_whole=False)
    file.write(promised)
    assert file.promise == promised
    file.close()
    assert reopened(tmp_path) == (promised, Origin.READ)


def test_a_life_that_others_met_is_followed_by_another_one(tmp_path: Path) -> None:
    """Restored from a backup it comes after the one that was running then, and is older than the one that followed."""
    file = PromiseFile(str(tmp_path), "b1")
    first = file.promise.life
    file.close()
    assert reopened(tmp_path)[0].life == first, "nobody met it: it goes on"
    file = PromiseFile(str(tmp_path), "b1")
    file.write(replace(file.promise, is_met=True))
    file.close()
    backup = (tmp_path / PROMISE_FILE).read_bytes()
    second = reopened(tmp_path)[0].life
    assert start_of(second) == start_of(first) + 1
    (tmp_path / PROMISE_FILE).write_bytes(backup)
    restored = reopened(tmp_path)[0].life
    assert restored == reopened(tmp_path)[0].life, "however often it is started, while it is refused"
    assert is_older(restored, second)
    assert is_older(first, second)
    assert not is_older(second, first)
    assert not is_older(second, second)


def test_the_format(tmp_path: Path) -> None:
    promise = Promise(None, A, "bé", 7, 12, B, None, {C: 3})
    slot = encode_slot(promise, 5)
    content = (
        f'{{"set":null,"store":"{A}","node":"bé","life":7,"epoch":12,"candidate":"{B}","founding":null,'
        f'"lives":{{"{C}":3}},"boot":"","is_whole":true,"is_met":false,"was":null}}'
    ).encode()
    assert len(slot) == SLOT_BYTES
    assert slot[:8] == b"TMQPROM1"
    assert slot[12:20] == (5).to_bytes(8, "big")
    assert slot[20:24] == len(content).to_bytes(4, "big")
    assert slot[24:].rstrip(b"\0") == content
    assert decode_slot(slot) == (5, promise)
    reopened(tmp_path)
    assert (tmp_path / PROMISE_FILE).stat().st_size == 2 * SLOT_BYTES


@given(st.integers(0, SLOT_BYTES * 8 - 1))
def test_a_bit_that_changed_is_seen(bit: int) -> None:
    slot = bytearray(encode_slot(Promise(None, A, "b1", 7, 12, B, None, {C: 3}), 5))
    slot[bit // 8] ^= 1 << bit % 8
    assert decode_slot(bytes(slot)) is None


@given(st.binary(max_size=SLOT_BYTES + 1))
def test_any_bytes_are_no_slot(data: bytes) -> None:
    assert decode_slot(data) is None
    assert decode_slot(data.ljust(SLOT_BYTES, b"\0")) is None


def test_an_unreadable_promise_is_another_store(tmp_path: Path) -> None:
    before, _ = reopened(tmp_path)
    (tmp_path / PROMISE_FILE).write_bytes(b"x" * 2 * SLOT_BYTES)
    after, origin = reopened(tmp_path)
    assert origin is Origin.UNREADABLE
    assert after.store != before.store
    assert (start_of(after.life), after.epoch, after.candidate) == (1, 0, None)
    assert reopened(tmp_path) == (after, Origin.READ)


def test_a_node_that_is_called_otherwise_is_the_same_store(tmp_path: Path) -> None:
    """The names of both may be as long as any, beside a founding of seven."""
    short, long = "b1", "n" * 255
    file = PromiseFile(str(tmp_path), long)
    promised = replace(file.promise, epoch=5, candidate=A, founding=large_founding(), lives=MANY_LIVES, is_met=True)
    file.write(promised)
    file.close()
    for node, was, expected in (
        (short, long, Origin.RENAMED),
        (short, long, Origin.READ),
        (long, short, Origin.RENAMED),
    ):
        found, origin = reopened(tmp_path, node)
        assert origin is expected
        assert found == replace(promised, node=node, was=was, life=found.life, is_met=False)
        assert start_of(found.life) == 2, "met once"


def test_a_promise_of_a_version_that_knew_no_former_names_is_kept(tmp_path: Path) -> None:
    first, _ = reopened(tmp_path)
    checked = encode_slot(first, 9)[12:].replace(b',"was":null}', b"}".ljust(12), 1)
    slot = b"TMQPROM1" + struct.pack(">I", zlib.crc32(checked)) + checked
    (tmp_path / PROMISE_FILE).write_bytes(slot * 2)
    assert reopened(tmp_path, "b2") == (replace(first, node="b2", was="b1"), Origin.RENAMED)


def test_a_promise_of_a_later_version_is_not_forgotten(tmp_path: Path) -> None:
    file = PromiseFile(str(tmp_path), "b1")
    checked = encode_slot(file.promise, 9)[12:].replace(b'"candidate":null', b'"candidate":[12]', 1)
    file.close()
    slot = b"TMQPROM1" + struct.pack(">I", zlib.crc32(checked)) + checked
    (tmp_path / PROMISE_FILE).write_bytes(slot * 2)
    with pytest.raises(PromiseUnknown, match="whose candidate cannot be read"):
        PromiseFile(str(tmp_path), "b1")
    assert (tmp_path / PROMISE_FILE).read_bytes() == slot * 2


def _is_refused(directory: str, answer: Any) -> None:
    try:
        PromiseFile(directory, "b1").close()
        answer.put(False)
    except PromiseFileInUse:
        answer.put(True)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answer: Any = context.SimpleQueue()
    file = PromiseFile(str(tmp_path), "b1")
    (tmp_path / PROMISE_FILE).read_bytes()  # another descriptor of ours is closed
    for expected in (True, False):
        other = context.Process(target=_is_refused, args=(str(tmp_path), answer))
        other.start()
        assert answer.get() is expected
        other.join()
        if expected:
            with pytest.raises(PromiseFileInUse):
                PromiseFile(str(tmp_path), "b1")
            assert start_of(file.promise.life) == 1
            file.close()


class Replacing:
    """The system's disk; right before the lock is taken, another file gets the name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def flock(self, fd: int, operation: int) -> None:
        replace_file(self._path)
        fcntl.flock(fd, operation)


def replace_file(path: Path) -> None:
    """Replace the file by a copy, like a restored backup."""
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def test_a_file_that_lost_its_name_keeps_no_other_process_away(tmp_path: Path) -> None:
    path = tmp_path / PROMISE_FILE
    with pytest.raises(PromiseFileInUse, match="replaced"):
        PromiseFile(str(tmp_path), "b1", cast(Any, Replacing(path)))
    file = PromiseFile(str(tmp_path), "b1")
    replace_file(path)
    other = PromiseFile(str(tmp_path), "b1")
    for promise in (lambda: file.write(replace(file.promise, epoch=1, candidate=A)), file.open_again):
        with pytest.raises(OSError, match="another file has its name"):
            promise()
    assert file.is_lost
    other.write(replace(other.promise, epoch=1, candidate=B))
    file.close()
    other.close()


def test_a_promise_is_not_withdrawn(tmp_path: Path) -> None:
    file = PromiseFile(str(tmp_path), "b1")
    file.write(replace(file.promise, epoch=5, candidate=A))
    file.write(replace(file.promise, lives={B: 3}))
    kept = (tmp_path / PROMISE_FILE).read_bytes()
    for wrong in (
        replace(file.promise, epoch=4),
        replace(file.promise, candidate=B),
        replace(file.promise, candidate=None),
        replace(file.promise, life=9),
        replace(file.promise, store=C),
    ):
        with pytest.raises(AssertionError):
            file.write(wrong)
    assert (tmp_path / PROMISE_FILE).read_bytes() == kept
    file.write(replace(file.promise, epoch=6, candidate=None))
    file.close()


def test_a_promise_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    file = PromiseFile(str(tmp_path), "b1")
    with pytest.raises(PromiseTooLong):
        file.write(replace(file.promise, epoch=1, lives={f"{n:032x}": n for n in range(200)}))
    assert file.promise.epoch == 0
    file.write(replace(file.promise, epoch=1))
    file.close()
    assert reopened(tmp_path)[0].epoch == 1


def large_founding() -> Founding:
    """Return a founding of seven stores with long names."""
    stores = [f"{n:032x}" for n in range(7)]
    return Founding(C, Voters(tuple(stores), dict.fromkeys(stores, "n" * 255)))


def test_a_founding_of_seven_with_long_names_fits_also_under_another_name(tmp_path: Path) -> None:
    founding = large_founding()
    lives = {f"{n:031x}a": 1_000_000 for n in range(LIVES_MAX)}
    file = PromiseFile(str(tmp_path), "n" * 255)
    file.write(replace(file.promise, set=A, epoch=1 << 40, candidate=B, founding=founding, lives=lives))
    file.close()
    renamed = reopened(tmp_path, "é" * 200)[0]
    assert (renamed.founding, renamed.was) == (founding, None), "the former name has no room"


def test_a_name_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(PromiseUnknown, match="whose node cannot be read"):
        PromiseFile(str(tmp_path), "n" * 256)
    assert (tmp_path / PROMISE_FILE).read_bytes() == b""


def test_the_lives_of_those_who_were_heard_of_last_are_kept() -> None:
    promise = Promise(None, A, "b1", 1, 0, None, None, {})
    stores = [f"{n:032x}" for n in range(LIVES_MAX + 5)]
    for store in stores[:LIVES_MAX]:
        promise = promise.saw(store, 1)
    promise = promise.saw(stores[0], 2)
    for store in stores[LIVES_MAX:]:
        promise = promise.saw(store, 1)
    assert len(promise.lives) == LIVES_MAX
    assert promise.lives[stores[0]] == 2
    assert stores[1] not in promise.lives
    assert promise.saw(stores[0], 1) is promise
    assert promise.saw(stores[0], 2) is promise


# ---- crashes

STEPS: list[dict[str, Any]] = [
    {"epoch": 3, "candidate": A, "founding": FOUNDING, "lives": {A: 2}},
    {"epoch": 4, "candidate": None, "set": C, "founding": None},
    {"epoch": 9, "candidate": B, "lives": MANY_LIVES},
]


def live(directory: Path, disk: Any, note: RecordingDisk) -> None:
    """A life that promises; what it is about to promise, and what it did, is noted."""
    file = PromiseFile(str(directory), "b1", disk)
    try:
        note.note(("did", said(file.promise)))
        for step in STEPS:
            if file.promise.epoch < step["epoch"]:
                promise = replace(file.promise, **step)
                note.note(("will", said(promise)))
                file.write(promise)
                note.note(("did", said(promise)))
    finally:
        file.close()


def allowed_after(events: list[Any], before: Promise | None) -> tuple[list[Promise], bool]:
    """Return the permitted contents, and whether the file may be empty."""
    did, will = before, []
    for event in events:
        if isinstance(event, Note):
            what, promise = event.what if isinstance(event.what, tuple) else (None, None)
            if what == "did":
                did, will = promise, []
            elif what == "will":
                will = [promise]
    return ([did] if did is not None else []) + will, did is None


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_directory() as directory:
        yield Path(directory)


def images_hold(disk: RecordingDisk, scratch: Path, before: Promise | None, images_max: int = 1_000) -> int:
    dice = random.Random(2)
    known: dict[tuple[Any, ...], bool] = {}
    model = DiskModel(random.Random(1))
    count = 0
    for number, event in enumerate(disk.events):
        model.apply(event)
        if number < disk.start:
            continue
        allowed, may_be_nothing = allowed_after(disk.events[: number + 1], before)
        images = list(model.images())
        for image in dice.sample(images, min(len(images), images_max)):
            key = (image.key, tuple(promise.epoch for promise in allowed))
            if key in known:
                continue
            known[key] = True
            count += 1
            directory = scratch / str(count)
            directory.mkdir(parents=True)
            image.put(str(directory))
            found, origin = reopened(directory)
            if may_be_nothing and origin in (Origin.NEW, Origin.UNREADABLE):
                continue
            if not allowed:
                assert found.epoch == 0
                continue
            assert origin is Origin.READ, f"{origin} after {event}: {image.story}"
            assert said(found) in allowed, f"{found} after {event}: {image.story}"
            again, _ = reopened(directory)
            assert again == found
            shutil.rmtree(directory)
    return count


@pytest.mark.parametrize("is_there", [False, True])
def test_the_power_goes_at_any_moment(scratch: Path, is_there: bool) -> None:
    directory = scratch / "store"
    directory.mkdir()
    before = None
    if is_there:
        reopened(directory)
        before = said(reopened(directory)[0])
    disk = RecordingDisk(str(directory))
    live(directory, disk, disk)
    assert images_hold(disk, scratch / "images", before) > 15


def is_sync_of_a_name(failed: Failed) -> bool:
    """In the model, a name is never durable after a failed sync, so no promise about it can hold."""
    return failed.call == "fsync" and failed.node == 0


# Half of the table by default.
@pytest.mark.parametrize(
    ("failure", "is_there"),
    [
        pytest.param(failure, is_there, marks=[pytest.mark.thorough] if (number + is_there) % 2 else [])
        for number, failure in enumerate(Failure)
        for is_there in (False, True)
    ],
)
def test_each_call_fails_then_the_process_starts_again_and_the_power_goes(
    scratch: Path, is_there: bool, failure: Failure
) -> None:
    """The failure comes at any moment of both lives. The second life may read data that is only in the page cache."""
    at, is_over = 0, False
    while not is_over:
        at += 1
        directory = scratch / str(at) / "store"
        directory.mkdir(parents=True)
        before = None
        if is_there:
            reopened(directory)
            before = said(reopened(directory)[0])
        recording = RecordingDisk(str(directory))
        disk = FailingDisk(recording, at, failure)
        try:
            live(directory, disk, recording)
        except OSError:
            assert failure is not Failure.SHORT
        is_over = disk.count < at
        live(directory, recording, recording)
        if disk.failed is None or not is_sync_of_a_name(disk.failed):
            images_hold(recording, scratch / str(at) / "images", before, FEW_IMAGES)
    assert at > 10


@pytest.mark.parametrize("slot", [0, 1])
def test_a_start_with_one_whole_slot_keeps_it_until_the_other_one_is_whole(scratch: Path, slot: int) -> None:
    directory = scratch / "store"
    directory.mkdir()
    live(directory, os, RecordingDisk(str(directory)))
    # The next life has a digit more: all that follows it moves.
    last = replace(reopened(directory)[0], life=9_999_999_999, is_met=True)
    before = said(last)
    content = bytearray(encode_slot(last, 8) + encode_slot(last, 9))
    content[slot * SLOT_BYTES + 100] ^= 1
    (directory / PROMISE_FILE).write_bytes(content)
    disk = RecordingDisk(str(directory))
    PromiseFile(str(directory), "b1", disk).close()
    assert images_hold(disk, scratch / "images", before) >= 3


@pytest.mark.parametrize("slot", [0, 1])
def test_a_start_keeps_what_is_synced_until_what_is_newer_is(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, slot: int
) -> None:
    """The process was killed between a write and its sync: the kernel gives out what the disk may not have. When the
    power goes, both that and the next write may be torn."""
    monkeypatch.setattr("tests.support.crash.crash_images.TORN_AT_ONCE", 2)
    directory = scratch / "store"
    directory.mkdir()
    live(directory, os, RecordingDisk(str(directory)))
    last, _ = reopened(directory)
    newer = replace(last, epoch=20, candidate=C)
    disk = RecordingDisk(str(directory))
    disk.note(("did", said(last)))
    disk.note(("will", said(newer)))
    fd = disk.open(str(directory / PROMISE_FILE), os.O_RDWR)
    disk.pwrite(fd, encode_slot(newer, 1_000), slot * SLOT_BYTES)
    disk.close(fd)
    file = PromiseFile(str(directory), "b1", disk)
    file.close()
    disk.note(("did", said(newer)))
    assert said(file.promise) == said(newer)
    assert images_hold(disk, scratch / "images", said(last)) > 5


def test_a_promise_is_said_when_it_is_on_the_disk(tmp_path: Path) -> None:
    """Other threads say it to other members while the disk is still at work, and may fail."""
    file = PromiseFile(str(tmp_path), "b1", disk := SimpleNamespace(**vars(os)))  # type: ignore[arg-type]
    file.write(replace(file.promise, is_met=True))
    said: list[Promise] = []

    def noted(call: Any) -> Any:
        def asked(*args: Any, **named: Any) -> Any:
            said.append(file.promise)
            return call(*args, **named)

        return asked

    vars(disk).update({name: noted(getattr(os, name)) for name in ("pwrite", "fsync", "fstat", "stat")})
    former = file.promise
    file.write(replace(former, epoch=1, candidate=A))
    assert {*map(repr, said)} == {repr(former)}
    former = file.promise
    said.clear()
    file.open_again()
    assert {*map(repr, said)} == {repr(former)}
    assert file.promise.life != former.life
    file.close()


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_after_a_failure_nothing_more_is_promised(tmp_path: Path, call: str) -> None:
    disk: Any = SimpleNamespace(**vars(os))
    broken = {call: Mock(side_effect=OSError(errno.EIO, "injected"))}
    file = PromiseFile(str(tmp_path), "b1", disk)
    file.write(replace(file.promise, epoch=3, candidate=A))
    vars(disk).update(broken)
    with pytest.raises(OSError, match="injected"):
        file.write(replace(file.promise, epoch=4, candidate=B))
    assert file.promise.epoch == 3
    vars(disk).update(vars(os))
    with pytest.raises(PromiseLost):
        file.write(replace(file.promise, epoch=5, candidate=C))
    vars(disk).update(broken)
    with pytest.raises(OSError, match="injected"):
        file.open_again()
    assert file.is_lost
    assert file.promise.epoch == 3
    vars(disk).update(vars(os))
    file.open_again()
    assert not file.is_lost
    assert file.promise.epoch in (3, 4)
    file.write(replace(file.promise, epoch=5, candidate=C))
    file.close()
    assert reopened(tmp_path)[0].epoch == 5
