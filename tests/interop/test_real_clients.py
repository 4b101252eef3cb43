"""Real, unmodified clients through a kill -9 of the master; `make clients` runs all of them, three kills each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.interop import real_clients
from tests.support.interop.books import Books
from tests.support.interop.checkouts import run_by_hand


@pytest.fixture(
    params=[
        *real_clients.IN_CI,
        *(pytest.param(name, marks=[pytest.mark.prove, pytest.mark.proof_only]) for name in real_clients.IN_PROOFS),
    ]
)
def client(request: pytest.FixtureRequest, require_service: Callable[[object, str], None]) -> real_clients.Client:
    found = real_clients.CLIENTS[request.param]
    if "go" in found.missing:  # Debian's is too old
        run_by_hand(f"make clients CLIENTS={found.name}")
    require_service(not found.missing, f"not installed: {', '.join(found.missing)}")
    return found


@pytest.mark.service
@pytest.mark.promise("clients-go-on")
@pytest.mark.timeout(600)  # where it is not built yet, its packages are downloaded
def test_a_real_client_loses_nothing_when_the_master_is_killed(client: real_clients.Client, tmp_path: Path) -> None:
    build = real_clients.built(client)
    books = real_clients.play(client, build, tmp_path, kills=1)
    assert not books.problems(is_once=client.is_once)


def test_the_books_find_what_is_lost_and_what_is_doubled() -> None:
    books = Books()
    for number in (1, 2, 3, 4):
        books.add(f'{{"sent": {number}}}')
    for line in (
        '{"confirmed": 1}', '{"received": 1, "id": "a"}', '{"received": 1, "id": "a"}',
        '{"confirmed": 2}', '{"received": 2, "id": "b"}', '{"received": 2, "id": "c"}',
        '{"confirmed": 3}',
        '{"received": 4}', '{"received": 4}',
    ):  # fmt: skip
        books.add(line)
    assert (books.sent, books.lost, books.doubled, books.again) == (4, [3], [2, 4], 1)
    assert len(books.problems(is_once=True)) == 2
    assert len(books.problems(is_once=False)) == 1
