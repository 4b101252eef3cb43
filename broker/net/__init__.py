"""Sockets: the listening side, a client's transport, TLS, and how the event loop is shared among connections."""
