"""Compiled from native.c, where a compiler was asked for; else there is no such module."""

def plain_head(data: bytes, start: int, bytes_max: int, headers_max: int, /) -> tuple[str, dict[str, str], int] | None:
    """The head that begins at ``start``, which is no line end: command, headers, and where the body begins.

    Only of a plain one: ASCII without NUL, carriage return and backslash, of at most ``bytes_max`` bytes and fewer than
    ``headers_max`` headers. None: it is another one, has a mistake, or is not whole.
    """
