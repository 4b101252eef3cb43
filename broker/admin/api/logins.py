"""Log in and out of the console, and show the caller."""

from __future__ import annotations

from aiohttp import web

from tandemmq.broker.admin.answers import answer
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.endpoints import Answer, Call, Endpoint, Refused
from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.admin.roles import Role
from tandemmq.broker.admin.sessions import cookie_of


class Logins:
    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET", "/session", Role.NOBODY, "Show the user of the request and the user's role.", self._get_session
            ),
            Endpoint("POST", "/session", Role.NOBODY, "Log in: sets a cookie.", self._log_in, body=parameters.Login),
            Endpoint("DELETE", "/session", Role.NOBODY, "Log out.", self._log_out),
        ]

    async def _get_session(self, call: Call) -> Answer:
        session = self._guard.sessions.of(call.request)
        csrf = None if session is None else session.csrf
        needs_login = call.caller.role is Role.NOBODY
        return {"name": call.caller.name, "role": call.caller.role.word, "csrf": csrf, "needs_login": needs_login}

    async def _log_in(self, call: Call) -> web.Response:
        body: parameters.Login = call.body
        if body.token:
            caller = self._guard.holder_of(body.token)
        else:
            caller = await self._guard.user(call.request, body.login, body.passcode)
        if caller is None:
            raise Refused(401, "the name, the passcode or the admin token is wrong")
        id, session = self._guard.sessions.begin(caller)
        response = answer({"name": caller.name, "role": caller.role.word, "csrf": session.csrf, "needs_login": False})
        is_secure = call.request.secure
        response.set_cookie(cookie_of(call.request), id, httponly=True, samesite="Strict", path="/", secure=is_secure)
        return response

    async def _log_out(self, call: Call) -> web.Response:
        self._guard.sessions.end(call.request)
        response = answer({})
        response.del_cookie(cookie_of(call.request), path="/")
        return response
