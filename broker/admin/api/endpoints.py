"""Endpoint of the API: a table entry. Its route, its checks and its part of the OpenAPI document are made from this
entry. ``Term`` has the engine and the destinations that endpoints use."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from tandemmq import __version__
from tandemmq.broker.admin.answers import Answers, Cursor, answer
from tandemmq.broker.admin.api.tasks import TooManyTasks
from tandemmq.broker.admin.callers import ANYBODY, Caller, Role
from tandemmq.broker.admin.guard import Guard, caller_of
from tandemmq.broker.admin.status import Report
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.engine.engine import Engine
from tandemmq.store.records.message import Destination, DestinationKind

log = logging.getLogger(__name__)

PREFIX: Final = "/api/v1"
#: Limit of the body of a request.
BODY_BYTES_MAX: Final = 64 * 1024

Answer = Mapping[str, Any]


class RequestFields(BaseModel):
    """Fields of a query or of a body. Undeclared fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(RequestFields):
    """A request without content."""


class Refused(Exception):
    """A refusal of a request, with the HTTP ``status`` and the reason. ``more``: further fields of the answer."""

    def __init__(self, status: int, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.more = more


@dataclass(frozen=True, slots=True)
class Call:
    """A valid request. ``path``: values of the variables in its path. ``query`` and ``body`` are of the types that the
    endpoint declares."""

    caller: Caller
    path: Mapping[str, str]
    query: Any
    body: Any
    request: web.Request


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint. ``path`` is without PREFIX, with variables in braces. ``role``: the required role. ``answers``: the
    JSON schema of an answer with 200; ``statuses``: further statuses, beside those of every endpoint. ``cursor``: of
    the rows of a paged list (``broker.admin.answers``)."""

    method: str
    path: str
    role: Role
    summary: str
    handle: Callable[[Call], Awaitable[Answer | web.StreamResponse]]
    query: type[RequestFields] = Nothing
    body: type[RequestFields] | None = None
    answers: Mapping[str, Any] | None = None
    statuses: Sequence[int] = ()
    cursor: Cursor | None = None


#: Meaning of each HTTP status, for the OpenAPI document.
STATUSES: Final = {
    202: "The task continues; /tasks/{id} shows its progress.",
    400: "The request is invalid.",
    401: "Authentication required.",
    403: "Permission denied.",
    404: "Not found.",
    409: "Not possible in this state. A standby names the master in `holder`.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    503: "The broker is busy; try again later.",
}
_EVERYWHERE: Final = (400, 401, 403, 404, 409, 503)
#: Status for each kind of refusal by the engine.
_OF_KIND: Final = {
    ErrorKind.SECURITY: 403,
    ErrorKind.DESTINATION: 404,
    ErrorKind.SELECTOR: 400,
    ErrorKind.RESOURCE: 503,
    ErrorKind.STATE: 409,
    ErrorKind.CLIENT_ID: 409,
}


def status_of(error: ClientError) -> int:
    """Return the HTTP status for a refusal by the engine."""
    return _OF_KIND.get(error.kind, 400)


OBJECT: Final = {"type": "object"}
PAGE: Final = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": OBJECT},
        "total": {"type": "integer", "minimum": 0},
        "following": {"type": ["string", "null"]},
    },
    "required": ["items", "total", "following"],
}
TASK: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "kind": {"type": "string"},
        "state": {"type": "string", "enum": ["running", "done", "stopped", "failed"]},
        "counts": OBJECT,
        "notes": {"type": "array", "items": {"type": "string"}},
        "error": {"type": ["string", "null"]},
    },
    "required": ["id", "kind", "state", "counts", "notes", "error"],
}


def routes(endpoints: Sequence[Endpoint], guard: Guard, answers: Answers) -> list[web.RouteDef]:
    """Return one route for each endpoint."""
    return [
        web.route(each.method, PREFIX + _VARIABLE.sub(r"{\1:[^/]+}", each.path), _handler(each, guard, answers))
        for each in endpoints
    ]


#: Pattern of a variable in a path. A variable of aiohttp does not match "{" and "}", but names may contain them.
_VARIABLE: Final = re.compile(r"\{(\w+)\}")
#: HTTP clients remove the parts "." and ".." from a path before they send it. So a "~" may be written in front of them.
_DOTS: Final = re.compile(r"~+\.{1,2}")


def _path(request: web.Request) -> dict[str, str]:
    return {name: part[1:] if _DOTS.fullmatch(part) else part for name, part in request.match_info.items()}


def _handler(
    endpoint: Endpoint, guard: Guard, answers: Answers
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        caller = caller_of(request)
        if caller.role < endpoint.role:
            if caller.role is Role.NOBODY or caller is ANYBODY:
                needed = f"the role {endpoint.role.word} is required: log in, or send the admin token"
                return guard.unknown(request, needed)
            return answer(
                {"error": f"{caller.name} has the role {caller.role.word}; the role {endpoint.role.word} is required"},
                403,
            )
        try:
            call = Call(caller, _path(request), _query(endpoint, request), await _body(endpoint, request), request)
            result = await endpoint.handle(call)
        except Refused as refusal:
            return answer({"error": str(refusal), **refusal.more}, refusal.status)
        except ClientError as error:
            if error.kind is ErrorKind.SECURITY:
                log.warning("denied: %s by the API: %s", caller.name, error.message)
            return answer({"error": error.message, "detail": error.detail}, status_of(error))
        except TooManyTasks as error:
            return answer({"error": str(error)}, 503)
        return result if isinstance(result, web.StreamResponse) else await answers.json(result, cursor=endpoint.cursor)

    return handle


def _query(endpoint: Endpoint, request: web.Request) -> RequestFields:
    fields: dict[str, Any] = {}
    for name in request.query:
        values = request.query.getall(name)
        fields[name] = values[0] if len(values) == 1 else values
    return _validated(endpoint.query, fields)


async def _body(endpoint: Endpoint, request: web.Request) -> RequestFields | None:
    if endpoint.body is None:
        return None
    # A page of a foreign site needs a permission of this server (CORS) to send this type. This server never gives it.
    if request.content_type != "application/json":
        raise Refused(415, "the body must be JSON, with Content-Type: application/json")
    try:
        fields = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body must be an object")
    return _validated(endpoint.body, fields)


def _validated(model: type[RequestFields], fields: dict[str, Any]) -> RequestFields:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise Refused(400, f"{place[:200]}: {first['msg']}") from None


# ---- the document


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of all ``endpoints``."""
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TandemMQ admin API",
            "version": __version__,
            "description": "The state of the broker, and actions of operators. A standby answers 409 to requests for "
            "the master and names it. Lists have pages: the next page begins after `following`.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "The broker's admin token."},
                "user": {"type": "http", "scheme": "basic", "description": "A user of the broker."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "tandemmq-session",
                    "description": "Set by POST /api/v1/session. Its name ends with the port of the address, if any.",
                },
            },
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "string"}, "detail": {"type": "string"}},
                    "required": ["error"],
                }
            },
        },
        "security": [{"token": []}, {"user": []}, {"session": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    name = endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_")
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}_{name}",
        "summary": endpoint.summary,
        "description": f"Needs the role {endpoint.role.word}.",
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint.query)],
        "responses": _responses(endpoint),
    }
    if endpoint.role is Role.NOBODY:
        operation["security"] = []
    if endpoint.body is not None:
        schema = endpoint.body.model_json_schema()
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    fine = {"description": "OK", "content": {"application/json": {"schema": endpoint.answers or OBJECT}}}
    responses: dict[str, Any] = {"200": fine}
    more = (413, 415) if endpoint.body is not None else ()
    for status in sorted({*_EVERYWHERE, *endpoint.statuses, *more}):
        schema = endpoint.answers or OBJECT if status == 202 else {"$ref": "#/components/schemas/Error"}
        content = {"application/json": {"schema": schema}}
        responses[str(status)] = {"description": STATUSES[status], "content": content}
    return responses


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(model: type[RequestFields]) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema.get("properties", {}).items()
    ]


# ---- the term of a master


KINDS: Final = {"queue": DestinationKind.QUEUE, "topic": DestinationKind.TOPIC}


class Term:
    """Term of the master. ``engine`` returns the engine of this term, None unless this broker is master."""

    def __init__(self, report: Report, engine: Callable[[], Engine | None]) -> None:
        self._report = report
        self._engine = engine

    def engine(self) -> Engine:
        """Return the engine. Raises Refused unless this broker is master."""
        engine = self._engine()
        if engine is None:
            raise self.not_master()
        return engine

    def not_master(self) -> Refused:
        status = self._report.status()
        holder = {"holder": status["holder"]} if status.get("holder") else {}
        reason = f"{status['name']} is not master but {status['role']}"
        return Refused(409, reason, name=status["name"], role=status["role"], **holder)

    def existing(self, call: Call) -> tuple[Engine, Destination]:
        """Return the engine and the destination in the path of the request. Raises Refused unless this broker is
        master, or if the destination does not exist."""
        engine, destination = self.engine(), Destination(kind_in(call), call.path["name"])
        self.row(destination)
        return engine, destination

    def row(self, destination: Destination) -> Answer:
        """Return the row of a destination. Raises Refused if the destination does not exist."""
        try:
            return self.engine().inventory.destination(destination)
        except KeyError:
            raise Refused(404, f"there is no {destination}") from None


def kind_in(call: Call) -> DestinationKind:
    """Return the kind of destination in the path of the request; queue if the path has none. Raises Refused for an
    unknown kind."""
    kind = call.path.get("kind", "queue")
    if kind not in KINDS:
        raise Refused(404, f"{kind[:64]!r} is not a kind of destination: expected queue or topic")
    return KINDS[kind]
