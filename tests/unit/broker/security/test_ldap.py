"""Users of a real OpenLDAP directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security.access import LDAP
from tandemmq.broker.security.ldap import LdapDirectory, LdapPlan
from tandemmq.broker.security.logins import DirectoryError
from tandemmq.config.security import LdapSettings
from tests.support.services import slapd as slapd_server
from tests.support.services.slapd import BASE, ROOT, ROOT_PASSWORD, Slapd

pytestmark = pytest.mark.service
pytest.importorskip("ldap3", reason="the extra ldap is not installed")


@pytest.fixture(scope="module")
def slapd(require_service: Callable[[object, str], None]) -> Iterator[Slapd]:
    server = slapd_server.started(require_service)
    yield server
    server.remove()


@pytest.fixture
def plan(slapd: Slapd) -> LdapPlan:
    settings = LdapSettings(
        connection_url=slapd.url,
        connection_username=ROOT,
        connection_password=ROOT_PASSWORD,
        user_base=f"ou=people,{BASE}",
        role_base=f"ou=groups,{BASE}",
    )
    return LDAP(settings, connection_url=slapd.url)


def test_a_user_with_the_right_password_has_the_directorys_groups(plan: LdapPlan) -> None:
    directory = LdapDirectory(plan)
    assert directory.find("dora", "d-pass") == Principal("dora", frozenset({"ops", "shops"}))
    assert directory.find("emil", "e-pass") == Principal("emil", frozenset({"shops"}))
    assert LdapDirectory(replace(plan, role_base="")).find("emil", "e-pass") == Principal("emil")
    assert directory.named("dora") == directory.find("dora", "d-pass")
    assert directory.named("eve") is None


@pytest.mark.parametrize(
    ("login", "passcode"),
    [
        ("dora", "wrong"),
        ("dora", "e-pass"),
        ("eve", "d-pass"),
        ("", "d-pass"),
        # A bind without a password succeeds at the server (RFC 4513, 5.1.2): it is never sent.
        ("dora", ""),
        # A text that could be a filter is a name that no user has.
        ("*", "d-pass"),
        ("dor*", "d-pass"),
        ("dora)(uid=*", "d-pass"),
        ("emil)(|(uid=dora", "d-pass"),
        ("dora\0", "d-pass"),
        ("dör\u2603\\", "d-pass"),
    ],
)
def test_a_wrong_password_and_a_clever_name_are_nobody(plan: LdapPlan, login: str, passcode: str) -> None:
    assert LdapDirectory(plan).find(login, passcode) is None


def test_an_ambiguous_filter_finds_no_user_and_a_search_of_one_level_does_not_descend(plan: LdapPlan) -> None:
    everybody = replace(plan, user_search_matching="(|(uid={0})(sn=*))")
    shallow = replace(plan, user_base=BASE, user_search_subtree=False)
    assert [LdapDirectory(each).find("dora", "d-pass") for each in (everybody, shallow)] == [None, None]


def test_a_name_with_signs_of_filters_in_it_is_found(plan: LdapPlan) -> None:
    by_full_name = replace(plan, user_search_matching="(cn={0})", role_search_matching="(&(member={0})(cn=*))")
    found = LdapDirectory(by_full_name).find("Dora (the first), O\\C", "d-pass")
    assert found is not None
    assert found.groups == {"ops", "shops"}


def test_a_directory_that_will_not_say_is_an_error_not_a_wrong_password(plan: LdapPlan) -> None:
    with pytest.raises(DirectoryError, match=r"the bind as .* failed"):
        LdapDirectory(replace(plan, connection_password="wrong")).find("dora", "d-pass")
    with pytest.raises(DirectoryError, match=r"ldap://127\.0\.0\.1:1: "):
        LdapDirectory(replace(plan, connection_url="ldap://127.0.0.1:1")).find("dora", "d-pass")
    with pytest.raises(DirectoryError):
        LdapDirectory(replace(plan, start_tls=True)).find("dora", "d-pass")
