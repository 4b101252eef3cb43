"""The store's pages (broker.admin.store_pages) of a broker with several stores: ``?store=NAME`` names the store.

Names are those of ``stores`` in ``GET /status``. Each store numbers its own files, so ``/store/why`` requires a name;
``/store/compact`` without a name means all stores. With one store in the directory no name is required.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aiohttp import web

from tandemmq.broker.admin.answers import answer
from tandemmq.broker.admin.store_pages import StorePages
from tandemmq.store.store import Store

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SeveralStorePages:
    """Pages of several stores. ``pages`` are those of the whole; ``members`` gives the stores by name while this broker
    is master of several, otherwise None; ``make`` makes the pages of one of them from its name and a function that
    returns it."""

    def __init__(
        self,
        pages: StorePages,
        members: Callable[[], Mapping[str, Store] | None],
        make: Callable[[str, Callable[[], Store | None]], StorePages],
    ) -> None:
        self._whole = _handlers(pages)
        self._members = members
        self._make = make
        self._of: dict[str, dict[str, Handler]] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/store/why", partial(self._answer, page="/store/why", needs_name=True), allow_head=False),
            web.post("/store/compact", partial(self._answer, page="/store/compact", needs_name=False)),
        ]

    async def _answer(self, request: web.Request, *, page: str, needs_name: bool) -> web.StreamResponse:
        """Answer with ``page`` of one store. ``page`` is not the path of the request, which may come through the
        API."""
        members = self._members()
        name = request.query.get("store")
        if members is None or (name is None and not needs_name):
            return await self._whole[page](request)
        if name is None or name not in members:
            names = ", ".join(sorted(members))
            what = "there are several stores" if name is None else f"there is no store {name!r}"
            return answer({"error": f"{what}: add ?store= with one of {names}", "stores": sorted(members)}, 400)
        if name not in self._of:
            self._of[name] = _handlers(self._make(name, lambda: (self._members() or {}).get(name)))
        return await self._of[name][page](request)


def _handlers(pages: StorePages) -> dict[str, Handler]:
    return {route.path: route.handler for route in pages.routes()}
