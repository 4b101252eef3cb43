"""`tandemmq config from-xml`: its input, output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.broker.security import users
from tandemmq.cli.config import config
from tandemmq.config.load import load

pytestmark = pytest.mark.promise("settings-of-activemq")

FIXTURES = Path(__file__).parent.parent / "config" / "from_xml" / "fixtures"
STANDARD = str(FIXTURES / "standard.xml")
SECURED = str(FIXTURES / "secured.xml")
BASE = ("--define", "activemq.base=/srv")


def invoke(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(config, ("from-xml", *arguments), input=text)


def test_settings_go_to_standard_output_and_notes_beside(tmp_path: Path) -> None:
    result = invoke(STANDARD, *BASE)
    assert result.exit_code == 0
    (tmp_path / "t.toml").write_text(result.stdout)
    assert load(tmp_path / "t.toml", {}).store.directory == "/srv/data/kahadb"
    notes = result.stderr.splitlines()
    assert any(line.startswith('line 22: storeUsage limit="100 gb": ') for line in notes)
    assert all(f"#  {line}\n" in result.stdout for line in notes)


def test_standard_input_is_read(tmp_path: Path) -> None:
    result = invoke("-", text="<broker brokerName='b'/>")
    assert result.exit_code == 0
    assert 'name = "b"' in result.stdout


def test_a_file_is_written_and_not_written_over(tmp_path: Path) -> None:
    output = tmp_path / "tandemmq.toml"
    assert invoke(STANDARD, *BASE, "--output", str(output)).stdout == ""
    before = output.read_text()
    assert load(output, {}).broker.name == "shop"
    refused = invoke(STANDARD, "--define", "activemq.base=/other", "--output", str(output))
    assert refused.exit_code == 2
    assert f"{output} exists already" in refused.stderr
    assert output.read_text() == before
    assert invoke(STANDARD, "--define", "activemq.base=/other", "--output", str(output), "--force").exit_code == 0
    assert "/other/data/kahadb" in output.read_text()


def test_users_are_written_with_hashes_of_their_passwords(tmp_path: Path) -> None:
    made, properties = tmp_path / "users", tmp_path / "credentials.properties"
    properties.write_text("# by hand\nactivemq.password = manager\n")
    result = invoke(SECURED, *BASE, "--users", str(made), "--properties", str(properties))
    assert result.exit_code == 0
    assert f'users_file = "{made}"' in result.stdout
    known = users.load(str(made)).by_name
    assert known.keys() == {"system", "guest"}
    assert known["system"].groups == {"users", "admins"}
    assert known["system"].hash is not None
    assert known["system"].hash.matches("manager")
    assert made.stat().st_mode & 0o777 == 0o600
    for text in (result.stdout, result.stderr, made.read_text()):
        assert "manager" not in text
        assert "letmein" not in text
    assert "authenticationUser[3]" in result.stderr, "a group of two words is none"
    assert invoke(SECURED, *BASE, "--users", str(made), "--properties", str(properties)).exit_code == 2


def test_users_of_a_jaas_login_are_read_beside_login_config(tmp_path: Path) -> None:
    made, login = tmp_path / "users", tmp_path / "login.config"
    xml = "<broker><plugins><jaasAuthenticationPlugin configuration='activemq'/></plugins></broker>"
    login.write_text("activemq { org.apache.activemq.jaas.PropertiesLoginModule required; };")
    (tmp_path / "users.properties").write_text("alice=wonder\n")
    (tmp_path / "groups.properties").write_text("shops=bob, alice\n")
    result = invoke("-", "--login-config", str(login), "--users", str(made), text=xml)
    assert result.exit_code == 0
    alice = users.load(str(made)).by_name["alice"]
    assert alice.groups == {"shops"}
    assert alice.hash is not None
    assert alice.hash.matches("wonder")
    (tmp_path / "users.properties").unlink()
    result = invoke("-", "--login-config", str(login), text=xml)
    assert "users.properties beside login.config (No such file or directory)" in result.stderr
    assert invoke("-", "--login-config", "/none", text=xml).exit_code == 2


def test_a_placeholder_without_a_value_is_reported(tmp_path: Path) -> None:
    output = tmp_path / "tandemmq.toml"
    result = invoke(STANDARD, "--output", str(output))
    assert result.exit_code == 2
    assert "no value for ${activemq.data} (line 18)" in result.stderr
    assert "--define activemq.data=VALUE" in result.stderr
    assert not output.exists()
    assert 'directory = "/d/kahadb"' in invoke(STANDARD, *BASE, "--define", "activemq.data=/d").stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<!DOCTYPE b [<!ENTITY x SYSTEM "file:///etc/passwd">]><broker>&x;</broker>', "a document type"),
        ("<project/>", "<project> is no configuration of ActiveMQ"),
        ("<broker>", "not XML"),
    ],
)
def test_an_invalid_configuration_gives_exit_code_2(text: str, expected: str) -> None:
    result = invoke("-", text=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


@pytest.mark.parametrize(
    "arguments", [("/none.xml",), (STANDARD, "--define", "a"), (STANDARD, "--properties", "/none")]
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_a_program_reads_what_was_carried_and_what_was_not() -> None:
    facts = json.loads(invoke(STANDARD, *BASE, "--json").stdout)
    assert facts["settings"] == invoke(STANDARD, *BASE).stdout
    kahadb = "beans/broker/persistenceAdapter/kahaDB"
    assert {"line": 18, "path": kahadb, "attribute": "directory", "as": "store.directory"} in facts["carried"]
    (note,) = [each for each in facts["notes"] if each["path"].endswith("storeUsage/storeUsage")]
    assert (note["line"], note["parts"]) == (22, ['limit="100 gb"'])
    assert "disk_reserve" in note["reason"]
