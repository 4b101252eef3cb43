"""WebSocket (RFC 6455): the request that begins it, its frames, and output of a STOMP session as messages. Pure."""
