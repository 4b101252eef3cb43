"""An outlet for tests of the core, which discards deliveries."""

from __future__ import annotations

from typing import Any

from tandemmq.broker.core.memory import Holder, Memory


class Outlet:
    session: Any = None

    def __init__(self, memory: Memory | None = None) -> None:
        """``memory``: the memory that limits it; None: no limit."""
        self.is_writable = True
        self.holder = Holder(memory or Memory(1 << 40))

    def touch(self) -> None: ...

    def close(self, after_flush: bool = True) -> None: ...
