"""A directory leaves its set: what it has, what it knew, and the promise file under another name."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tandemmq.broker.replication.member import LEFT, NotMember, leaver
from tandemmq.broker.replication.peers import KNOWN_FILE, Known, read_known, write_known
from tandemmq.broker.replication.promise import PromiseFileInUse
from tandemmq.store.membership import PROMISE_FILE, BelongsToSet, demand_no_set
from tests.support.replication.small_set import SmallNode, SmallSet


def remember(node: SmallNode, *others: SmallNode) -> None:
    """Store the known members, as a broker does each second."""
    known = Known(lambda: 0.0)
    for each in others:
        known.note(each.replica.state.store, each.replica.status())
    write_known(str(node.directory))(known.written(node.replica.status()))


def test_a_directory_where_a_node_runs_stays_in_its_set(whole: SmallSet) -> None:
    directory = str(whole.nodes[0].directory)
    with pytest.raises(PromiseFileInUse, match="stop it first"), leaver(directory):
        pass
    with pytest.raises(BelongsToSet):
        demand_no_set(directory)


def test_a_directory_of_no_set_has_nothing_to_leave(tmp_path: Path) -> None:
    with pytest.raises(NotMember), leaver(str(tmp_path)):
        pass


# proves: left-promise-is-the-locked-file
def test_a_promise_file_that_was_replaced_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is that of the file that was opened: a node may run by now with the one that has the name."""
    path = tmp_path / PROMISE_FILE
    path.touch()
    flock = fcntl.flock

    def replace_and_lock(fd: int, operation: int) -> None:
        path.unlink()
        path.touch()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replace_and_lock)
    with pytest.raises(PromiseFileInUse, match="replaced"), leaver(str(tmp_path)):
        pass


def test_a_directory_after_leave_belongs_to_no_set(whole: SmallSet) -> None:
    master = whole.begun()
    whole.until(lambda: master.replica.status()["final"] == master.replica.status()["position"][1:], "it is final")
    remember(master, *(node for node in whole.nodes if node is not master))
    position = master.replica.state.position
    master.stop()
    with leaver(str(master.directory)) as leaving:
        standing = leaving.standing()
        assert standing.position == position
        assert standing.has_all_final
        assert standing.damage is None
        assert standing.ahead() == []
        assert standing.unheard() == []
        assert standing.set is not None
        assert len(standing.set.voters) == 3
        leaving.leave()
    assert (master.directory / LEFT).exists()
    demand_no_set(str(master.directory))


def test_a_node_that_had_more_is_reported(whole: SmallSet) -> None:
    master = whole.begun()
    away, other = (node for node in whole.nodes if node is not master)
    away.stop()
    master.write("b")
    remember(away, master)
    with leaver(str(away.directory)) as leaving:
        standing = leaving.standing()
        assert [each.node for each in standing.ahead()] == [master.name]
        assert standing.unheard() == [other.name]


def test_without_the_file_the_final_place_is_unknown(whole: SmallSet) -> None:
    master = whole.begun()
    master.stop()
    (master.directory / KNOWN_FILE).unlink(missing_ok=True)
    with leaver(str(master.directory)) as leaving:
        standing = leaving.standing()
    assert standing.final is None
    assert not standing.has_all_final
    assert len(standing.unheard()) == 2


# ---- knowledge of a node about the others, in memory and in its file


def said(store: str, node: str, end: int) -> dict[str, object]:
    return {"store": store, "node": node, "position": [1, 1, end], "final": [1, end], "links": ["x"]}


def test_the_last_report_counts_and_ages() -> None:
    now = [5.0]
    known = Known(lambda: now[0])
    assert known.of("b") is None
    known.note("b", said("b", "n2", 10))
    known.note("b", said("b", "n2", 20))
    now[0] = 7.5
    assert known.of("b") == (said("b", "n2", 20), 2.5)


def test_the_file_says_it_when_no_process_runs(tmp_path: Path) -> None:
    known = Known(lambda: 0.0)
    known.note("b", said("b", "n2", 20))
    write_known(str(tmp_path))(known.written(said("a", "n1", 30)))
    found = read_known(str(tmp_path))
    assert found is not None
    members, _ = found
    assert members["a"]["position"] == [1, 1, 30]
    assert members["b"]["node"] == "n2"
    assert "links" not in members["b"]
    assert [path.name for path in tmp_path.iterdir()] == [KNOWN_FILE]


def test_it_is_written_when_something_changed_only(tmp_path: Path) -> None:
    write = write_known(str(tmp_path))
    write({"a": {"position": [1, 1, 1]}})
    before = (tmp_path / KNOWN_FILE).stat().st_ino
    write({"a": {"position": [1, 1, 1]}})
    assert (tmp_path / KNOWN_FILE).stat().st_ino == before
    write({"a": {"position": [1, 1, 2]}})
    assert read_known(str(tmp_path))[0]["a"]["position"] == [1, 1, 2]  # type: ignore[index]


def test_an_unreadable_file_counts_as_unknown(tmp_path: Path) -> None:
    assert read_known(str(tmp_path)) is None
    for content in ("", "{", "[]", '{"members": 1}', '{"members": {"a": 1}}'):
        (tmp_path / KNOWN_FILE).write_text(content)
        assert read_known(str(tmp_path)) is None


def test_a_disk_that_cannot_take_it_ends_nothing(tmp_path: Path) -> None:
    write_known(str(tmp_path / "gone"))({"a": {}})
