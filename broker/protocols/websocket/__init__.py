"""WebSocket (RFC 6455): the request that begins it, its frames, and what a STOMP session says as messages. Pure."""
