"""A follower's own copy of the journal: what is cut, what is let go, and where it stands afterwards."""

from __future__ import annotations

from pathlib import Path

from tandemmq.broker.replication.copy import JournalCopy
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.records.commands import encode_trace
from tandemmq.store.threads import OS_THREADS

FILE_LENGTH = 1 << 16


def journal(path: Path, files: int) -> JournalFiles:
    made = JournalFiles(str(path))
    made.prepare("a", FILE_LENGTH)
    made.publish("a", 1)
    writer = JournalWriter(made, "a", 1, file_length_max=FILE_LENGTH)
    writer.append([encode_trace("first")])
    for file in range(2, files + 1):
        writer.rotate(encode_trace(f"file {file}"))
    writer.sync()
    writer.close()
    return made


def test_who_let_a_file_go_that_was_given_up_is_not_forked(tmp_path: Path) -> None:
    """It stands further back than what it knows as final, and the master agrees with all that it has."""
    files = journal(tmp_path, 3)
    copy = JournalCopy(files, OS_THREADS)
    final = copy.scan().position[1:]
    copy.begin(final, (1, 2), ())
    assert files.list() == [1, 2]
    common = copy.scan().position[1:]
    assert common < final
    assert not copy.is_forked(common, final)
    copy.close()


def test_who_has_what_the_master_has_not_is_forked(tmp_path: Path) -> None:
    files = journal(tmp_path, 3)
    copy = JournalCopy(files, OS_THREADS)
    file, end = copy.scan().position[1:]
    assert copy.is_forked((file, end - 1), (file, end))
    assert not copy.is_forked((file, end), (file, end))
    copy.close()
