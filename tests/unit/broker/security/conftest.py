"""Shared parts of the tests of security."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess, Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security.rights import Grant, Rights
from tandemmq.store.records.message import Destination
from tests.support.security.authority import Authority


class RuledAccess(OpenAccess):
    """Access in which each client is the user that it names, is in the groups of that name, and has the ``rights``."""

    has_rights = True

    def __init__(self, groups: Mapping[str, frozenset[str]], rights: Sequence[Grant]) -> None:
        super().__init__(is_everywhere=True)
        self._groups = groups
        self.rights = Rights(rights)

    def connect(self, credentials: Credentials, then: Callable[[Principal | ClientError], None]) -> None:
        assert credentials.login is not None
        then(Principal(credentials.login, self._groups.get(credentials.login, frozenset())))

    error: ClientError | None = None  # why it is not known who a user is

    def identify(self, user: str | None) -> Principal:
        if self.error is not None:
            raise self.error
        if user not in self._groups:
            raise refusal(f"User {user} no longer exists", kind=ErrorKind.SECURITY)
        return Principal(user, self._groups[user])

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        self.rights.check(principal, operation, destination)

    def may(self, principal: Principal, operation: Operation, destination: Destination) -> bool:
        return self.rights.may(principal, operation, destination)


@pytest.fixture
def authority(tmp_path: Path, require_program: Callable[[object, str], None]) -> Authority:
    require_program(shutil.which("openssl"), "no openssl in the path")
    return Authority(tmp_path, "root")
