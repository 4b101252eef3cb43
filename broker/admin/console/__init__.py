"""The web console: the static files at ``/`` and ``/console/`` that use the API, read once and held in memory. Nothing
is built here, and nothing is loaded from elsewhere.

The files are public for every client that reaches the server, and contain nothing of the broker. The page gets its
content from the API, which checks the caller. The page may load from and send to this server only, and no text becomes
markup in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import Final

from aiohttp import ETag, web

PREFIX: Final = "/console/"
FIRST_PAGE: Final = "index.html"
CONTENT_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
#: Hash of the script in the first page. The script loads the page again if a file of the page did not arrive.
FIRST_PAGE_SCRIPT: Final = "'sha256-2+cqgHSxGXladFw/ltodnrmpELdvvu08DfRpcaFq3iA='"
#: Trusted types: a browser that supports them does not let a script turn text into markup.
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'self' {FIRST_PAGE_SCRIPT}",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A browser validates a cached file at each use, because another version of the broker has other files.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    content_type: str
    etag: str


def console_files() -> dict[str, File]:
    """Return the files by name."""
    found: dict[str, File] = {}
    for each in files(__package__).joinpath("static").iterdir():
        content_type = CONTENT_TYPES.get(each.name[each.name.rfind(".") :])
        if content_type is not None:
            content = each.read_bytes()
            found[each.name] = File(content, content_type, sha256(content).hexdigest()[:32])
    assert FIRST_PAGE in found, "the console's files are part of the package"
    return found


def console_routes() -> list[web.RouteDef]:
    """Return the routes for the admin server."""
    found = console_files()
    return [
        web.get("/", partial(_get, found, FIRST_PAGE)),
        web.get(PREFIX.rstrip("/"), partial(_get, found, FIRST_PAGE)),
        web.get(PREFIX + "{name:[^/]*}", partial(_get, found, None)),
    ]


async def _get(found: dict[str, File], name: str | None, request: web.Request) -> web.Response:
    file = found.get(name or request.match_info["name"] or FIRST_PAGE)
    if file is None:
        return web.Response(status=404, text="this file does not exist\n", headers=HEADERS)
    known = request.if_none_match or ()
    if any(each.value in (file.etag, "*") for each in known):
        response = web.Response(status=304, headers=HEADERS)
    else:
        response = web.Response(body=file.content, content_type=file.content_type, charset="utf-8", headers=HEADERS)
    response.etag = ETag(file.etag)
    return response
