"""What tests of every room share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

import pytest
from hypothesis import settings

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "services"))
pytest_plugins = ("databases",)

REQUIRE_SERVICES = "TANDEMMQ_REQUIRE_SERVICES"
THOROUGH = "TANDEMMQ_THOROUGH"


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false")


IS_THOROUGH = any(map(_is_set, ("CI", THOROUGH, REQUIRE_SERVICES)))
# Where somebody waits, properties are tried with fewer examples; those that name a number of their own keep it.
settings.register_profile("quick", max_examples=30, deadline=None)
if not IS_THOROUGH:
    settings.load_profile("quick")


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Tests marked `thorough` take their time: they run where nobody waits for them, or where they are asked for."""
    if IS_THOROUGH:
        return
    for item in items:
        if item.get_closest_marker("thorough") is not None:
            item.add_marker(pytest.mark.skip(reason=f"thorough: with {THOROUGH}=1, and in CI"))


@pytest.fixture(scope="session")
def require_service() -> Callable[[object, str], None]:
    """`require_service(condition, reason)`: skip for want of a program that pip does not install.

    With TANDEMMQ_REQUIRE_SERVICES=1, as where everything is installed, the want is a failure.
    """

    def require(condition: object, reason: str) -> None:
        if condition:
            return
        if _is_set(REQUIRE_SERVICES):
            pytest.fail(f"{reason} ({REQUIRE_SERVICES} is set)", pytrace=False)
        pytest.skip(reason)

    return require
