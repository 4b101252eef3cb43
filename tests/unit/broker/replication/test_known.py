"""What a node knows of the others, in memory and in its file."""

from __future__ import annotations

from pathlib import Path

from tandemmq.broker.replication.known import FILE_NAME, Known, read_known, write_known


def said(store: str, node: str, end: int) -> dict[str, object]:
    return {"store": store, "node": node, "position": [1, 1, end], "final": [1, end], "links": ["x"]}


def test_what_was_heard_last_counts_and_grows_old() -> None:
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
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_it_is_written_when_something_changed_only(tmp_path: Path) -> None:
    write = write_known(str(tmp_path))
    write({"a": {"position": [1, 1, 1]}})
    before = (tmp_path / FILE_NAME).stat().st_ino
    write({"a": {"position": [1, 1, 1]}})
    assert (tmp_path / FILE_NAME).stat().st_ino == before
    write({"a": {"position": [1, 1, 2]}})
    assert read_known(str(tmp_path))[0]["a"]["position"] == [1, 1, 2]  # type: ignore[index]


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert read_known(str(tmp_path)) is None
    for content in ("", "{", "[]", '{"members": 1}', '{"members": {"a": 1}}'):
        (tmp_path / FILE_NAME).write_text(content)
        assert read_known(str(tmp_path)) is None


def test_a_disk_that_cannot_take_it_ends_nothing(tmp_path: Path) -> None:
    write_known(str(tmp_path / "gone"))({"a": {}})
