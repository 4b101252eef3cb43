"""Reader of plain STOMP heads in C (native.c). The module exists only if the build compiled it."""

def plain_head(data: bytes, start: int, bytes_max: int, headers_max: int, /) -> tuple[str, dict[str, str], int] | None:
    """Return the head that begins at ``start``, which is not a line end: command, headers, and where the body begins.

    Only for a plain head: ASCII without NUL, carriage return and backslash, of at most ``bytes_max`` bytes and fewer
    than ``headers_max`` headers. None: the head has another form, has a mistake, or is incomplete.
    """
