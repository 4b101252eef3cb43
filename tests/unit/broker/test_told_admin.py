"""Which address of its admin server a member of a set tells the others."""

from __future__ import annotations

import pytest

from tandemmq.broker.wiring import _admin_url
from tandemmq.config.load import load


@pytest.mark.parametrize(
    ("admin", "hostname", "told"),
    [
        ("0.0.0.0:8161", "one.example.org", "http://one.example.org:8161"),
        ("10.0.0.1:8161", "one.example.org", "http://10.0.0.1:8161"),
        ("127.0.0.1:8161", "one.example.org", None),
        ("127.0.0.1:8161", "127.0.0.1", "http://127.0.0.1:8161"),
        ("off", "one.example.org", None),
    ],
)
def test_what_leads_nowhere_is_not_told(admin: str, hostname: str, told: str | None) -> None:
    admin_uri = admin if admin == "off" else f"http://{admin}"
    overrides = ("broker.name=orders", f"replication.hostname={hostname}", f"admin.uri={admin_uri}")
    assert _admin_url(load(None, {}, overrides)) == told


def test_a_pair_tells_what_was_said() -> None:
    assert _admin_url(load(None, {}, ())) == "http://127.0.0.1:8161"
