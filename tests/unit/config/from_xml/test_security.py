"""Users in a JAAS plugin's login.config are converted, or named in the notes."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tandemmq.config.from_xml import Converted, Logins, UnreadableXml, convert
from tandemmq.config.from_xml.security import BYTES_MAX, read
from tandemmq.config.load import load_text

FILES = """
/* users in files;
   groups, too */
activemq {
    org.apache.activemq.jaas.PropertiesLoginModule required
        debug=true  // in the log
        org.apache.activemq.jaas.properties.user="users.properties"
        org.apache.activemq.jaas.properties.group="groups.properties";
    org.apache.activemq.jaas.GuestLoginModule sufficient
        org.apache.activemq.jaas.guest.user="nobody" org.apache.activemq.jaas.guest.group="strangers";
};
other { com.example.Module optional a="b"; };
"""
DIRECTORY = """
activemq {
    org.apache.activemq.jaas.LDAPLoginModule required
        initialContextFactory=com.sun.jndi.ldap.LdapCtxFactory
        connectionURL="ldap://directory:389" connectionUsername="uid=admin,ou=system" connectionPassword="hush"
        connectionProtocol="" authentication=simple
        userBase="ou=User,dc=example" userSearchMatching="(uid={0})" userSearchSubtree=false
        roleBase="ou=Group,dc=example" roleName=cn roleSearchMatching="(member={0})" expandRoles=true;
};
"""
PROPERTIES = {
    "users.properties": {"system": "manager", "guest": "letmein", "odd": "ENC(abc)"},
    "groups.properties": {"admins": "system", "users": "system,guest"},
}


def properties(name: str) -> dict[str, str]:
    if name not in PROPERTIES:
        raise ValueError(f"{name} beside login.config")
    return PROPERTIES[name]


def converted(config: str, *, has_file: bool = True, plugin: str = "jaasAuthenticationPlugin") -> Converted:
    raw = f"<broker><plugins><{plugin} configuration='activemq'/></plugins></broker>".encode()
    line = (lambda name, password, groups: f"{name}:{password}:{groups}") if has_file else None
    found = convert(raw, "a.xml", {}, Logins(line, "users", read(config), properties))
    load_text(found.text, "a.xml")
    return found


def security(found: Converted) -> Any:
    return tomllib.loads(found.text)["security"]


def told(found: Converted) -> str:
    return "\n".join(map(str, found.notes))


def test_users_in_files_become_users() -> None:
    found = converted(FILES)
    assert found.users == ("system:manager:admins,users", "guest:letmein:users")
    assert security(found) == {
        "allow_anonymous": "true",
        "anonymous_user": "nobody",
        "anonymous_group": "strangers",
        "users_file": "users",
    }
    assert "odd: expected a password that is not encrypted" in told(found)
    assert 'login.config, line 12: other <Module> a="b": No plugin of the broker uses it.' in told(found)


def test_users_are_named_where_nobody_wants_their_file() -> None:
    found = converted(FILES, has_file=False)
    assert found.users == ()
    assert "`tandemmq user add system --groups admins,users --file users`" in told(found)
    assert "manager" not in found.text


def test_a_directory_is_asked_by_the_same_keys() -> None:
    found = converted(DIRECTORY)
    assert security(found) == {
        "allow_anonymous": "false",
        "ldap": {
            "connection_url": "ldap://directory:389",
            "connection_username": "uid=admin,ou=system",
            "user_base": "ou=User,dc=example",
            "user_search_matching": "(uid={0})",
            "user_search_subtree": False,
            "role_base": "ou=Group,dc=example",
            "role_name": "cn",
            "role_search_matching": "(member={0})",
        },
    }
    assert "TANDEMMQ_SECURITY__LDAP__CONNECTION_PASSWORD" in told(found)
    assert 'expandRoles="true": Groups in groups' in told(found)
    assert "authentication" not in told(found)
    assert "hush" not in found.text


@pytest.mark.parametrize(
    "config",
    [
        DIRECTORY.replace("userBase", "nothing"),
        DIRECTORY.replace("ldap://", "http://"),
        FILES.replace("groups.properties", "none"),
        "activemq { com.example.Module required; };",
        "other { com.example.Module required; };",
    ],
    ids=["no base", "no directory", "no file", "no module", "no realm"],
)
def test_denied_access_stays_denied(config: str) -> None:
    found = converted(config)
    assert security(found)["users_file"] == "users", "which is not there, so no broker starts"
    assert found.users == ()


def test_users_by_certificate_are_asked_for_one() -> None:
    module = "activemq { org.apache.activemq.jaas.TextFileCertificateLoginModule required; };"
    found = converted(module, plugin="jaasCertificateAuthenticationPlugin")
    assert tomllib.loads(found.text)["tls"] == {"client_auth": "want"}
    assert "tandemmq user add NAME --no-password --certificate SUBJECT" in told(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "line 1: expected '{'"),
        ("a {\n b required\n x\n};", "line 3: expected '='"),
        ("a { b never; };", "expected b required|requisite"),
        ('a { b required x="', "a text without an end"),
        ("a { b required x=1; }", "expected ';'"),
        ("a { b required x=", "expected ';'"),
        (" " * (BYTES_MAX + 1), "at most 64kb"),
    ],
)
def test_an_invalid_login_config_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UnreadableXml) as refused:
        read(text)
    assert expected in str(refused.value)


def test_modules_are_elements_with_their_lines() -> None:
    root = read('a {\n x.B required p="1 \\" 2" ;\n x.B sufficient; };\nb{};')
    assert [(each.path, each.line, each.attributes) for each in root.walk()] == [
        ("login.config", 1, {}),
        ("login.config/a", 1, {}),
        ("login.config/a/B", 2, {"p": '1 " 2'}),
        ("login.config/a/B[2]", 3, {}),
        ("login.config/b", 4, {}),
    ]
    numbers = [each.number for each in root.walk()]
    assert len(set(numbers)) == len(numbers)
