"""Secrets of a set, said or in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.broker.settings.replication import security_token, zk_password
from tandemmq.config.errors import SettingsError
from tandemmq.config.replication import ReplicationSettings


def table(**values: object) -> ReplicationSettings:
    return ReplicationSettings.model_validate(values)


def test_a_secret_is_what_was_said_or_the_first_line_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("word with blanks \r\nnot this\n")
    assert (security_token(table()), zk_password(table())) == ("", "")
    assert security_token(table(security_token="word")) == "word"
    assert security_token(table(security_token_file=str(path))) == "word with blanks "
    assert zk_password(table(zk_password="word")) == "word"
    assert zk_password(table(zk_password_file=str(path))) == "word with blanks "


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "No such file"), (b"\nword", "it is empty"), (b"\xff\n", "can't decode")]
)
def test_a_file_without_a_secret_is_told_with_its_key(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"replication\.security_token_file = .*{expected}"):
        security_token(table(security_token_file=str(path)))
    with pytest.raises(SettingsError, match=rf"replication\.zk_password_file = .*{expected}"):
        zk_password(table(zk_password_file=str(path)))
