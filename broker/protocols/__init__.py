"""Wire protocols: bytes in, commands out; events in, bytes out. Pure."""
