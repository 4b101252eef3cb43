"""State of the store over HTTP: ``GET /store/why``, ``POST /store/compact``.

Only a master answers. A standby answers 409 with its own name and, if known, the master. Data is read from the disk on
a separate thread, so a slow volume delays only the page.

Of several stores ``?store=NAME`` names one, as in ``stores`` of ``GET /status``. Each numbers its own files, so
``/store/why`` requires a name; ``/store/compact`` without a name means all stores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from aiohttp import web

from tandemmq.broker.admin.answers import Answers, Status, answer, not_master
from tandemmq.broker.core.slices import Work
from tandemmq.broker.ha.service import AnyStore
from tandemmq.journal.errors import JournalError
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.several.layout import ROOT
from tandemmq.store.state.state import State
from tandemmq.store.store import Store
from tandemmq.store.tools.inspect import read_headers
from tandemmq.store.tools.why.explain import NoSuchFile, Place, explain
from tandemmq.store.tools.why.inventory import file_named

# Limit of the wait for the storage thread, which answers between two batches. If the volume hangs for longer, /health
# shows it, too.
ANSWER_SECONDS_MAX = 10.0
# Limit of concurrent requests; each reads from the disk on a thread.
REQUESTS_MAX = 2

T = TypeVar("T")


class _Ended(Exception):
    """The store was closed before it answered."""


class StorePages:
    """Pages of the store, or of several stores. ``place`` returns the paths of a store by its name. ``store`` returns
    the store; None unless this broker is master. ``status`` and ``details`` return the parts of ``GET /status``."""

    def __init__(
        self,
        place: Callable[[str], Place],
        store: Callable[[], AnyStore | None],
        status: Callable[[], Status],
        details: Callable[[], Work[Status]],
        answers: Answers | None = None,
    ) -> None:
        self._place = place
        self._store = store
        self._status = status
        self._details = details
        self._answers = answers or Answers()
        self._compactions: dict[AnyStore, asyncio.Future[CompactionReport]] = {}
        self._requests = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/store/why", self._get_why, allow_head=False),
            web.post("/store/compact", self._post_compact),
        ]

    def _chosen(self, request: web.Request) -> tuple[str, AnyStore] | web.Response:
        """Return name and store that the request chooses (the name ROOT and all stores without ``?store=``), or a
        refusal."""
        store, name = self._store(), request.query.get("store")
        if store is None:
            return self._not_master()
        if isinstance(store, Store) or name is None:
            return ROOT, store
        members = store.members()
        return (name, members[name]) if name in members else _which(f"there is no store {name!r}", members)

    async def _get_why(self, request: web.Request) -> web.Response:
        """Explain why journal files are kept: all files, or the file in ``?file=db-87``."""
        chosen = self._chosen(request)
        if isinstance(chosen, web.Response):
            return chosen
        name, store = chosen
        if not isinstance(store, Store):
            return _which("there are several stores", store.members())
        text = request.query.get("file")
        only = None if text is None else file_named(text)
        if text is not None and only is None:
            return answer({"error": f"{text[:100]!r} is not a journal file: expected db-87.log, db-87 or 87"}, 400)
        if self._requests >= REQUESTS_MAX:
            return answer({"error": f"{REQUESTS_MAX} such requests are in progress: try again later"}, 503)
        self._requests += 1
        try:
            return await self._why(store, self._place(name), only)
        finally:
            self._requests -= 1

    async def _why(self, store: Store, place: Place, only: int | None) -> web.Response:
        consumers = _consumers(await self._answers.run(self._details()))

        def ask(function: Callable[[State], T]) -> T:
            try:
                return store.ask(function).result(ANSWER_SECONDS_MAX)
            except CancelledError as error:
                raise _Ended from error

        try:
            explained = await asyncio.to_thread(
                lambda: dataclasses.asdict(
                    explain(
                        ask,
                        place,
                        read_headers(place.files),
                        int(time.time() * 1000),
                        consumers=consumers,
                        only=only,
                    )
                )
            )
        except NoSuchFile as error:
            return answer({"error": str(error)}, 404)
        except TimeoutError:
            return answer({"error": f"the storage thread gave no answer in {ANSWER_SECONDS_MAX:.0f} s"}, 503)
        except _Ended:
            return self._not_master()
        except (OSError, JournalError) as error:
            return answer({"error": str(error)}, 500)
        return await self._answers.json(explained, all_at={"files": "/store/why?file=NAME"})

    async def _post_compact(self, request: web.Request) -> web.Response:
        """Answer when the compaction has ended. Only one runs at a time: a request that arrives during a compaction
        gets the result of that compaction."""
        # A page of another site cannot send this content type without permission (CORS), which this server never gives.
        if request.content_type != "application/json":
            return answer({"error": "compaction requires Content-Type: application/json"}, 415)
        chosen = self._chosen(request)
        if isinstance(chosen, web.Response):
            return chosen
        _, store = chosen
        compaction = self._compactions.get(store)
        if compaction is None or compaction.done():
            self._compactions = {each: one for each, one in self._compactions.items() if not one.done()}
            compaction = self._compactions[store] = asyncio.wrap_future(store.compact())
        try:
            report = await asyncio.shield(compaction)
        except asyncio.CancelledError:
            if not compaction.cancelled():
                raise  # the client cancelled this request; the compaction continues
            return self._not_master()
        except (OSError, JournalError) as error:
            return answer({"error": str(error)}, 500)
        return answer(report._asdict())

    def _not_master(self) -> web.Response:
        status = self._status()
        return not_master(status, f"{status['name']} is not master but {status['role']}")


def _which(what: str, members: Mapping[str, Store]) -> web.Response:
    names = sorted(members)
    return answer({"error": f"{what}: add ?store= with one of {', '.join(names)}", "stores": names}, 400)


def _consumers(details: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of consumers by owner. An owner has its name in store.tools.why: queue://NAME, or client:name
    of a durable subscription."""
    found = {f"queue://{queue['name']}": int(queue.get("consumers", 0)) for queue in details.get("queues") or ()}
    for subscription in details.get("subscriptions") or ():
        found[f"{subscription['client_id']}:{subscription['name']}"] = int(subscription.get("consumers", 0))
    return found
