"""The running broker: core, protocols, engine, transport, and their wiring. The event loop lives here."""
