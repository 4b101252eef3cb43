"""What tests of every room share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "services"))
pytest_plugins = ("databases",)

REQUIRE_SERVICES = "TANDEMMQ_REQUIRE_SERVICES"


@pytest.fixture(scope="session")
def require_service() -> Callable[[object, str], None]:
    """`require_service(condition, reason)`: skip for want of a program that pip does not install.

    With TANDEMMQ_REQUIRE_SERVICES=1, as where everything is installed, the want is a failure.
    """

    def require(condition: object, reason: str) -> None:
        if condition:
            return
        if os.environ.get(REQUIRE_SERVICES, "0") not in ("", "0"):
            pytest.fail(f"{reason} ({REQUIRE_SERVICES} is set)", pytrace=False)
        pytest.skip(reason)

    return require
