"""Levels of the log over HTTP: ``GET /log-level``, ``POST /log-level``.

A level that is set here is valid until the settings are read again (SIGHUP), or until the process ends.
"""

from __future__ import annotations

import logging

from aiohttp import web

from tandemmq import log_events
from tandemmq.broker.admin.answers import answer
from tandemmq.broker.process.log import DEFAULT, LEVELS, Log, UnknownLogger

log = logging.getLogger(__name__)


class LogPages:
    """Pages for the log of this process."""

    def __init__(self, process_log: Log) -> None:
        self._log = process_log

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/log-level", self._get, allow_head=False),
            web.post("/log-level", self._post),
        ]

    async def _get(self, request: web.Request) -> web.Response:
        return self._answer()

    async def _post(self, request: web.Request) -> web.Response:
        """Set the level in ``?logger=NAME&level=LEVEL``."""
        # A page of another site cannot send this content type without permission (CORS), which this server never gives.
        if request.content_type != "application/json":
            return answer({"error": "setting a level requires Content-Type: application/json"}, 415)
        name, level = request.query.get("logger", ""), request.query.get("level", "")
        if level not in (*LEVELS, DEFAULT):
            return answer({"error": f"level={level[:50]!r}: expected {', '.join(LEVELS)} or {DEFAULT}"}, 400)
        try:
            self._log.set_level(name, None if level == DEFAULT else level)
        except UnknownLogger as error:
            return answer({"error": str(error)}, 422)
        log.warning(
            "the level of logger %s is %s, set from %s", name, level, request.remote, extra=log_events.LOG_LEVEL_SET
        )
        return self._answer()

    def _answer(self) -> web.Response:
        return answer({"levels": self._log.levels, "lines_dropped": self._log.dropped})
