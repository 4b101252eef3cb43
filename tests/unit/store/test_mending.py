"""Damage that is found during a read is repaired from another copy, if there is one, before any delivery."""

# proves: file-is-mended-once, mended-file-is-read-anew, promotion-mends-a-file-once

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest

from tandemmq.store.authority import SharedVolume
from tandemmq.store.damage.report import StoreCorrupt
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tests.support.store.standbys import standby_of
from tests.support.store.store_harness import Term

SETTINGS = StoreSettings(checkpoint_records=10, fence_check_interval=0.01)
BODIES = [b"body %d" % number for number in range(1, 21)]


class OtherCopy(SharedVolume):
    """Has what the journal had when it was made. ``answers``: what it says when it is asked to mend, one after the
    other, the last one again and again; it mends for True."""

    def __init__(self, directory: Path, *answers: bool | None) -> None:
        self.good = {path: path.read_bytes() for path in directory.glob("db-*.log")}
        self._answers = list(answers)
        self.asked: list[int] = []

    def mend(self, file: int) -> Future[bool]:  # type: ignore[override]
        self.asked.append(file)
        assert len(self.asked) < 100, "it is asked again and again"
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        future: Future[bool] = Future()
        if answer is None:
            future.cancel()
            return future
        for path, good in self.good.items() if answer else ():
            with open(path, "r+b") as mended:
                mended.write(good)
        future.set_result(answer)
        return future


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """20 messages that wait, in a sealed file."""
    with Term(str(tmp_path), settings=SETTINGS) as term:
        for _ in range(4):
            term.add_durably(5)
    with Term(str(tmp_path), settings=SETTINGS) as term:
        assert term.bodies() == BODIES
    return tmp_path


def standby(journal: Path, other: OtherCopy) -> Standby:
    return standby_of(str(journal), "a", SETTINGS, authority=other)


def rot(journal: Path, body: bytes) -> None:
    path = journal / "db-1.log"
    content = path.read_bytes()
    assert content.count(body) == 1
    with open(path, "r+b") as rotten:
        rotten.write(content.replace(body, body.swapcase()))


@pytest.mark.parametrize("is_read_before", [True, False])
@pytest.mark.parametrize("answers", [(True,), (False, True)], ids=["at once", "after a while"])
def test_messages_are_mended_before_they_are_given_out_in_order(
    journal: Path, is_read_before: bool, answers: tuple[bool, ...]
) -> None:
    other = OtherCopy(journal, *answers)
    with Term.of(standby(journal, other)) as term:
        if is_read_before:
            term.bodies()
        rot(journal, b"body 7")
        assert term.bodies() == BODIES
        assert set(other.asked) == {1}
        assert term.store.figures.damaged == 0


@pytest.mark.parametrize("answer", [True, None], ids=["it says that all is well", "it ends"])
def test_a_repair_that_fails_is_tried_only_at_intervals(journal: Path, answer: bool | None) -> None:
    other = OtherCopy(journal, answer)
    other.good.clear()
    with Term.of(standby(journal, other)) as term:
        rot(journal, b"body 7")
        for _ in range(2):
            found = term.bodies()
            assert b"body 7" not in found
            assert found == [body for body in BODIES if body in found]
        assert other.asked == [1]
        assert term.store.figures.damaged


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_promotion_mends_what_it_has_to_read(journal: Path, is_mended: bool) -> None:
    other = OtherCopy(journal, True)
    if not is_mended:
        other.good.clear()
    shutil.rmtree(journal / "index")
    rot(journal, b"body 7")
    if not is_mended:
        with pytest.raises(StoreCorrupt):
            Term.of(standby(journal, other))
        assert other.asked == [1], "it says that all is well: another copy has the same"
        return
    with Term.of(standby(journal, other)) as term:
        assert term.bodies() == BODIES


def test_a_standby_has_mended_what_it_waits_at(journal: Path) -> None:
    other = OtherCopy(journal, True)
    shutil.rmtree(journal / "index")
    rot(journal, b"body 7")
    waiting = standby(journal, other)
    waiting.follow()
    assert (other.asked, waiting.messages) == ([1], 5)
    waiting.follow()
    assert (other.asked, waiting.messages) == ([1], 20)
    waiting.close()
