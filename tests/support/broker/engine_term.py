"""An engine with the real store, in a test without an event loop: a term that ends by a normal stop or by a crash."""

from __future__ import annotations

from typing import Any

from tandemmq.broker.core.access import Access
from tandemmq.broker.core.policies import Policies
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.part import Loop
from tandemmq.store.operations import Operation
from tandemmq.store.standby import Standby
from tests.support.store.store_harness import Term

NOW = 1_000


class EngineTerm(Term):
    """A term that passes completed operations to ``engine``."""

    engine: Any = None
    engine_settings = EngineSettings()
    access: Access | None = None
    policies: Policies | None = None

    def _begin(self, standby: Standby) -> None:
        super()._begin(standby)
        loop = Loop(lambda: NOW)
        self.engine = Engine(self.store, self.engine_settings, loop, policies=self.policies, access=self.access)

    def durable(self, operations: list[Operation]) -> None:
        super().durable(operations)
        self.engine.durable(operations)

    def make_steps(self) -> None:
        """Do nothing: steps are made at once."""
