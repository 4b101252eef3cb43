"""The file of users: its content, its errors, and how it is written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.broker.security import users
from tandemmq.broker.security.users import UsersError
from tandemmq.cli.user import user

pytestmark = pytest.mark.promise("users-are-reloaded")

HASH = str(users.Hash(4, 8, 1, b"s" * 16, b"h" * 32))


# ---- hashes


def test_a_password_is_known_by_its_hash_and_no_other_is() -> None:
    made = users.make("pässword")
    again = users.read(str(made))
    assert again == made
    assert again.matches("pässword")
    assert not again.matches("password")
    assert not again.matches("")
    assert users.make("pässword") != made  # the salt differs


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "$scrypt$ln=14,r=8,p=1$$",
        HASH.replace("ln=4", "ln=0"),
        HASH.replace("ln=4", "ln=24"),  # 16 GiB
        HASH.replace("r=8", "r=0"),
        HASH.replace("p=1", "p=999").replace("ln=4", "ln=14"),
        HASH.replace("$scrypt", "$bcrypt"),
        HASH + "\n",
    ],
)
def test_an_invalid_or_too_expensive_hash_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a hash"):
        users.read(text)


def test_a_long_password_is_none_before_it_is_hashed() -> None:
    assert not users.UNKNOWN_USER.matches("x" * (users.PASSWORD_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="1 to 1024 bytes"):
        users.make("x" * 1025)


# ---- the file


def test_a_file_is_read() -> None:
    text = f"# people\n\nalice:{HASH}:admins, ops\nbob:!:ops:CN=bob,O=A:B\r\n"
    found = users.parse(text, "f")
    alice, bob = found.by_name["alice"], found.by_name["bob"]
    assert alice.groups == {"admins", "ops"}
    assert alice.hash == users.read(HASH)
    assert (bob.hash, bob.certificate) == (None, "CN=bob,O=A:B")
    assert found.by_certificate == {"CN=bob,O=A:B": bob}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alice", "line 1: expected NAME:HASH:GROUP,GROUP:CERTIFICATE"),
        (f"\nalice:{HASH}", "line 2: expected NAME:HASH"),
        (f"alice:{HASH}:\nalice:!:", "line 2: expected each user once, but alice occurs twice"),
        ("a:!::CN=x\nb:!::CN=x", "line 2: expected a different certificate for b than for a"),
        ("alice:secret:", "line 1: expected a hash like"),
        ("alice:!:a b", "names of groups"),
        ("alice:!:*", "names of groups"),
        (" alice:!:", "a name of at most"),
        (f"{'a' * 256}:!:", "a name of at most"),
    ],
)
def test_a_wrong_line_is_named_and_no_hash_is_shown(text: str, expected: str) -> None:
    with pytest.raises(
        UsersError, match="^f, " + expected.replace("(", r"\(") if expected.startswith("line") else expected
    ) as no:
        users.parse(text, "f")
    assert "secret" not in str(no.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsersError, match="none: cannot be read: No such file"):
        users.load(str(tmp_path / "none"))
    (tmp_path / "latin").write_bytes(b"\xe4:!:")
    with pytest.raises(UsersError, match="latin: is not UTF-8"):
        users.load(str(tmp_path / "latin"))


def test_a_file_keeps_its_mode_when_it_is_written_and_a_new_one_is_private(tmp_path: Path) -> None:
    path = tmp_path / "users"
    users.write(str(path), "a:!:\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    users.write(str(path), "b:!:\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["users"]


def test_an_invalid_user_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("a:!:\n")
    with pytest.raises(UsersError):
        users.write(str(path), "a\n")
    assert path.read_text() == "a:!:\n"
    assert os.listdir(tmp_path) == ["users"]


# ---- tandemmq user


def run(path: Path, *arguments: str, password: str = "s3cret") -> Result:
    return CliRunner().invoke(user, [*arguments, "--file", str(path)], input=f"{password}\n")


def test_users_are_added_changed_listed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert run(path, "add", "alice", "--groups", "ops", "--stdin").exit_code == 0
    assert run(path, "add", "orders", "--no-password", "--certificate", "CN=orders").exit_code == 0
    path.write_text("# who may come\n" + path.read_text())
    assert users.load(str(path)).by_name["alice"].hash is not None
    assert "s3cret" not in path.read_text()

    assert run(path, "passwd", "alice", "--stdin", password="other").exit_code == 0
    assert run(path, "set", "alice", "--groups", "ops,admins").exit_code == 0
    alice = users.load(str(path)).by_name["alice"]
    assert alice.groups == {"ops", "admins"}
    assert alice.hash is not None
    assert alice.hash.matches("other")
    assert json.loads(run(path, "list", "--json").stdout) == [
        {"name": "alice", "groups": ["admins", "ops"], "certificate": None, "has_password": True},
        {"name": "orders", "groups": [], "certificate": "CN=orders", "has_password": False},
    ]
    assert run(path, "list").stdout.splitlines()[2].split() == ["orders", "none", "no", "CN=orders"]

    assert run(path, "remove", "alice").exit_code == 0
    assert path.read_text() == "# who may come\norders:!::CN=orders\n"
    path.write_text(path.read_text().rstrip())
    assert run(path, "set", "orders", "--groups", "shops").exit_code == 0
    assert path.read_text() == "# who may come\norders:!:shops:CN=orders\n", "a broker refuses a line without an end"
    assert run(path, "remove", "orders").exit_code == 0
    assert path.read_text() == users.NO_USERS
    assert run(path, "add", "bob", "--no-password", "--certificate", "CN=bob").exit_code == 0
    assert path.read_text() == "bob:!::CN=bob\n", "its first line alone does not mean that there are no users"


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("add", "bob", "--stdin"), 1, "bob exists already"),
        (("passwd", "eve", "--stdin"), 1, "there is no eve"),
        (("remove", "eve"), 1, "there is no eve"),
        (("add", "a:b", "--stdin"), 2, "expected a name"),
        (("add", "eve", "--stdin", "--groups", "a b"), 2, "expected names of groups"),
        (("add", "eve", "--no-password"), 2, "needs --certificate"),
        (("add", "eve", "--no-password", "--certificate", "CN=b\nroot:!:admins"), 2, "one line"),
        (("add", "eve", "--no-password", "--certificate", "CN=bob"), 1, "than for bob"),
    ],
)
def test_an_invalid_command_changes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    path = tmp_path / "users"
    path.write_text("bob:!::CN=bob\n")
    result = run(path, *arguments)
    assert result.exit_code == code
    assert expected in result.stderr
    assert path.read_text() == "bob:!::CN=bob\n"
