"""Conversion of authentication and authorization plugins: [security].

If rights or users cannot be converted, the result denies access until the operator configures them.

Java's login.config, where a JAAS plugin of ActiveMQ finds its users: read as elements, so that no part is forgotten.

    LdapConfiguration {
        org.apache.activemq.jaas.LDAPLoginModule required
            connectionURL="ldap://localhost:1024"
            userBase="ou=User,dc=example";
    };

becomes an element `login.config` with an element for each configuration, which contains one for each module: its name
is the last word of the module's class, its attributes are the module's options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.config.from_xml.conversion import ANYWAY, Conversion, Table
from tandemmq.config.from_xml.document import XML_BYTES_MAX, Element, UnreadableXml
from tandemmq.config.kahadb_property import snake_case
from tandemmq.config.section import show_size

#: Default path of the file of users, when it was not written.
USERS_FILE: Final = "users"


def _no_file(name: str) -> dict[str, str]:
    raise ValueError(f"{name} beside login.config")


@dataclass(frozen=True, slots=True)
class Logins:
    """Facts about users beside the document. ``line``: makes a line of the file of users from name, password and
    groups; it raises ValueError with the expected form; None: that file, ``path``, is not to be written. ``config``:
    login.config; ``properties`` reads a Java properties file that is named there, or raises ValueError."""

    line: Callable[[str, str, str], str] | None = None
    path: str = USERS_FILE
    config: Element | None = None
    properties: Callable[[str], Mapping[str, str]] = _no_file


_JAAS: Final = (
    "Its users are in files that login.config names: pass it with --login-config. Or add them with `tandemmq user add "
    f"NAME --groups … --file {USERS_FILE}`, or set [security.ldap] if it is an LDAPLoginModule. Until then the file "
    "is missing, and the broker does not start."
)
_FILES: Final = "org.apache.activemq.jaas.properties."
_GUEST: Final = "org.apache.activemq.jaas.guest."
_CERTIFICATES: Final = (
    "Certificate users: add each with `tandemmq user add NAME --no-password --certificate SUBJECT`. A subject has its "
    "nearest part first: CN=orders,O=Example."
)
_NO_MODULE: Final = "There is no such module: users are in a file, or in a directory that [security.ldap] names."
_NO_PLUGIN: Final = "No plugin of the broker uses it."
#: Options of an LDAPLoginModule that are fixed here, and those that do not exist here.
_LDAP_ANYWAY: Final = {"authentication": ("simple",), "connectionProtocol": ("", "s", "tls", "ssl")}
_LDAP_LEFT: Final = {
    "initialContextFactory": "A Java class.",
    "userRoleName": "Groups name their users; there is no attribute of the user.",
    "expandRoles": "Groups in groups are not searched.",
    "expandRolesMatching": "Groups in groups are not searched.",
    "debug": "Failed logins are in the log.",
}
_LDAP_RIGHTS: Final = (
    "Rights are not read from a directory: write a [[security.authorization]] table for each pattern. Until then "
    "no user has any right."
)
_ADVISORY: Final = (
    "Fewer rights are needed for advisories here, and some of them show the actions of all clients to all clients "
    "(docs/security.md): remove it unless a program monitors the broker."
)
_TEMPORARY: Final = "All users may use temporary destinations; each belongs to the connection that created it."
_RIGHTS: Final = ("read", "write", "admin")


def authentication(work: Conversion, element: Element, users: list[str], logins: Logins) -> None:
    """Convert simpleAuthenticationPlugin."""
    security = work.settings.table("security")
    work.carry(element, None, security, "users_file", logins.path)
    security.values.setdefault("allow_anonymous", "false")
    for name, key in (("anonymousUser", "anonymous_user"), ("anonymousGroup", "anonymous_group")):
        if name in element.attributes:
            work.carry(element, name, security, key)
    if "anonymousAccessAllowed" in element.attributes:
        work.carry(element, "anonymousAccessAllowed", security, "allow_anonymous")
    for holder in work.children(element, "users"):
        for user in work.children(holder, "authenticationUser"):
            _user(work, user, users, logins)
    work.became(element, None, "security.users_file")


def _user(work: Conversion, element: Element, users: list[str], logins: Logins) -> None:
    given: dict[str, Any] = {
        key: work.value(element, key) for key in ("username", "groups") if key in element.attributes
    }
    name, groups = given.get("username", ""), given.get("groups", "")
    if logins.line is None:
        work.leave(element, None, f"No password is written without --users FILE. {_by_hand(name, groups, logins.path)}")
        return
    if "password" not in element.attributes:
        work.leave(element, None, "A user without a password.")
        return
    try:
        _add(users, name, work.value(element, "password"), groups, logins)
    except ValueError as error:
        work.leave(element, None, f"Expected {error}.")
        return
    for attribute in (None, "username", "password", "groups"):
        if attribute is None or attribute in element.attributes:
            work.became(element, attribute, logins.path)


def _add(users: list[str], name: str, password: str, groups: str, logins: Logins) -> None:
    """Add a line. Raises ValueError with the expected form."""
    assert logins.line is not None, "the file of users is to be written"
    if password.startswith("ENC("):
        raise ValueError("a password that is not encrypted")
    if any(each.partition(":")[0] == name for each in users):
        raise ValueError("each user once")
    users.append(logins.line(name, password, groups))


def _by_hand(name: str, groups: str, path: str) -> str:
    words = ["tandemmq", "user", "add", name, *(["--groups", groups] if groups else []), "--file", path]
    return f"Add the user: `{shlex.join(words)}`."


# ---- JAAS


def jaas(work: Conversion, element: Element, users: list[str], logins: Logins) -> None:
    security = work.settings.table("security")
    security.values.setdefault("allow_anonymous", "false")
    name = element.attributes.get("configuration", "activemq-domain")
    realms = [] if logins.config is None else [each for each in logins.config.children if each.name == name]
    if not realms:
        work.leave(element, None, _JAAS)
    else:
        work.became(element, None, "security")
        work.became(element, "configuration", "security")
        for module in work.wrap(realms[0]).children:
            rule = _MODULES.get(module.name)
            if rule is None:
                work.leave(module, None, _NO_MODULE)
            else:
                rule(work, module, users, logins)
    if "ertificate" in element.name or "Dual" in element.name:
        work.carry(element, None, work.settings.table("tls"), "client_auth", "want", _CERTIFICATES)


def others(work: Conversion, config: Element) -> None:
    """Record the configurations that no plugin uses."""
    for realm in work.wrap(config).children:
        if (realm.number, None) not in work.fates:
            work.leave(realm, None, _NO_PLUGIN)


def _properties(work: Conversion, module: Element, users: list[str], logins: Logins) -> None:
    """Convert PropertiesLoginModule: a file of users and passwords, and one of groups and users."""
    try:
        known, members = (
            logins.properties(module.attributes.get(f"{_FILES}{kind}", f"{kind}s.properties"))
            for kind in ("user", "group")
        )
    except ValueError as error:
        work.leave(module, None, f"Expected {error}.")
        return
    said = []
    for name, password in known.items():
        groups = ",".join(
            group for group, text in members.items() if name in [part.strip() for part in text.split(",")]
        )
        if logins.line is None:
            said.append(_by_hand(name, groups, logins.path))
            continue
        try:
            _add(users, name, password, groups, logins)
        except ValueError as error:
            said.append(f"{name}: expected {error}.")
    work.settings.table("security").values["users_file"] = logins.path
    work.became(module, None, "security.users_file", " ".join(said))
    for option in module.attributes:
        if option.startswith(_FILES):
            work.became(module, option, "security.users_file")
        elif option in ("reload", "debug"):
            work.became(module, option, ANYWAY)


def _directory(work: Conversion, module: Element, users: list[str], logins: Logins) -> None:
    """Convert LDAPLoginModule: its keys have the same names."""
    ldap = work.settings.table("security").table("ldap")
    if ldap.values:
        work.leave(module, None, "Only one directory is used: that of the module before it.")
        return
    work.became(module, None, ldap.name)
    for option in module.attributes:
        key = snake_case(option)
        if key in ldap.model.model_fields:
            work.carry(module, option, ldap, key)
        elif work.value(module, option) in _LDAP_ANYWAY.get(option, ()):
            work.became(module, option, ANYWAY)
        elif option in _LDAP_LEFT:
            work.leave(module, option, _LDAP_LEFT[option])


def _guest(work: Conversion, module: Element, users: list[str], logins: Logins) -> None:
    security = work.settings.table("security")
    work.carry(module, None, security, "allow_anonymous", "true")
    for name in ("user", "group"):
        if f"{_GUEST}{name}" in module.attributes:
            work.carry(module, f"{_GUEST}{name}", security, f"anonymous_{name}")


def _certificates(work: Conversion, module: Element, users: list[str], logins: Logins) -> None:
    work.leave(module, None, _CERTIFICATES)


_MODULES: Final[Mapping[str, Callable[[Conversion, Element, list[str], Logins], None]]] = {
    "PropertiesLoginModule": _properties,
    "LDAPLoginModule": _directory,
    "GuestLoginModule": _guest,
    "TextFileCertificateLoginModule": _certificates,
}


# ---- rights


def authorization(work: Conversion, element: Element) -> None:
    for holder in work.children(element, "map"):
        work.wrap(holder)
        for found in holder.children:
            if found.name == "authorizationMap":
                work.wrap(found)
                _authorization_map(work, found)
            else:
                work.leave(found, None, _LDAP_RIGHTS)
    if not work.settings.table("security").values.get("authorization"):
        for kind in ("queue", "topic"):
            _table(work, element, None, kind, ">")


def _authorization_map(work: Conversion, element: Element) -> None:
    _group_class(work, element)
    for holder in element.children:
        if holder.name == "authorizationEntries":
            for entry in work.children(holder, "authorizationEntry"):
                _entry(work, entry)
        elif holder.name == "defaultEntry":
            # It applies where no other entry does; rights add up here, so rights on ">" would apply everywhere.
            work.leave(holder, None, "Rights add up over all matching patterns: write an entry for each pattern.")
        elif holder.name == "tempDestinationAuthorizationEntry":
            work.leave(holder, None, _TEMPORARY)


def _entry(work: Conversion, element: Element) -> None:
    patterns = [
        (name, part.strip())
        for name in ("queue", "topic")
        if name in element.attributes
        for part in work.value(element, name).split(",")
        if part.strip()
    ]
    if not patterns:
        work.leave(element, None, _TEMPORARY if {"tempQueue", "tempTopic"} & set(element.attributes) else "No pattern.")
        return
    for kind, pattern in patterns:
        remark = _ADVISORY if kind == "topic" and pattern.startswith("ActiveMQ.Advisory") else ""
        table = _table(work, element, kind, kind, pattern, remark)
        for right in _RIGHTS:
            if right in element.attributes:
                more = [part.strip() for part in work.value(element, right).split(",") if part.strip()]
                both = dict.fromkeys([*table.values.get(right, []), *more])
                work.carry(element, right, table, right, list(both))
    _group_class(work, element)


def _group_class(work: Conversion, element: Element) -> None:
    if "groupClass" in element.attributes:
        work.leave(element, "groupClass", "A Java class: groups are names.")


def _table(
    work: Conversion, element: Element, attribute: str | None, kind: str, pattern: str, remark: str = ""
) -> Table:
    """Return the table of the pattern: entries for one pattern add up, as in ActiveMQ."""
    security = work.settings.table("security")
    for table in security.values.get("authorization", []):
        if table.values.get(kind) == pattern:
            work.became(element, attribute, f"security.authorization.{kind}", remark)
            assert isinstance(table, Table)
            return table
    table = security.add("authorization", (element, None))
    work.became(element, None, "security.authorization")
    work.carry(element, attribute, table, kind, pattern, remark)
    return table


def keep_closed(work: Conversion, root: Element) -> None:
    """Deny access if rights or users could not be converted: no group has rights, and no user exists until the operator
    adds some."""
    names = {each.name for each in root.walk()}
    security = work.settings.table("security")
    if "authorizationPlugin" in names and not security.values.get("authorization"):
        for kind in ("queue", "topic"):
            security.add("authorization", (root, None)).values[kind] = ">"
    ldap = security.values.get("ldap")
    has_directory = isinstance(ldap, Table) and "connection_url" in ldap.values
    if any(name.startswith("jaas") and name.endswith("AuthenticationPlugin") for name in names) and not has_directory:
        security.values.setdefault("users_file", USERS_FILE)


NAME: Final = "login.config"
BYTES_MAX: Final = 1 << 16
#: Number after all elements that an XML document may have.
_FIRST: Final = XML_BYTES_MAX
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r'(?P<blank>\s+|//[^\n]*|/\*.*?\*/)|"(?P<text>(?:\\.|[^"\\])*)"|(?P<sign>[{};=])|(?P<word>[^\s{};="]+)', re.DOTALL
)


def read(text: str) -> Element:
    """Parse login.config. Raises UnreadableXml with the line and the expected form."""
    if len(text) > BYTES_MAX:
        raise UnreadableXml(f"{NAME} has at most {show_size(BYTES_MAX)}")
    tokens = _tokens(text)
    root = Element(NAME, 1, NAME, _FIRST, {})
    while tokens:
        name, line = tokens.pop(0)
        _expect(tokens, "{", line)
        realm = _inside(root, name, line)
        while tokens and tokens[0][0] != "}":
            _module(tokens, realm)
        _expect(tokens, "}", line)
        _expect(tokens, ";", line)
    return root


def _module(tokens: list[tuple[str, int]], realm: Element) -> None:
    name, line = tokens.pop(0)
    flag = tokens.pop(0)[0].lower() if tokens else ""
    if flag not in _FLAGS:
        raise UnreadableXml(f"{NAME}, line {line}: expected {name} {'|'.join(_FLAGS)}, got {flag!r}")
    module = _inside(realm, name.rpartition(".")[2], line)
    while tokens and tokens[0][0] != ";":
        option, line = tokens.pop(0)
        _expect(tokens, "=", line)
        if not tokens:
            break
        module.attributes[option] = tokens.pop(0)[0]
    _expect(tokens, ";", line)


def _inside(holder: Element, name: str, line: int) -> Element:
    same = sum(child.name == name for child in holder.children)
    path = f"{holder.path}/{name}{f'[{same + 1}]' if same else ''}"
    root = holder.parent or holder
    made = Element(name, line, path, root.number + sum(1 for _ in root.walk()), {}, holder)
    holder.children.append(made)
    return made


def _expect(tokens: list[tuple[str, int]], sign: str, line: int) -> None:
    if not tokens or tokens[0][0] != sign:
        got = f"{tokens[0][0]!r} in line {tokens[0][1]}" if tokens else "its end"
        raise UnreadableXml(f"{NAME}, line {line}: expected {sign!r} behind it, got {got}")
    tokens.pop(0)


def _tokens(text: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnreadableXml(f"{NAME}, line {line}: a text without an end")
        if match["blank"] is None:
            quoted = match["text"]
            found.append((re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else match[0], line))
        line += match[0].count("\n")
        at = match.end()
    return found
