"""The running broker: core, protocols, engine, transport, and what wires them together. The event loop lives here."""
