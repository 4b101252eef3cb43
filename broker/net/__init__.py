"""Sockets: listening, the transport of a client, TLS, and the shares of connections in the event loop's time."""
