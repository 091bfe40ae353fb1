"""HTTP requests in, replies of a Desk out: paths, headers, bodies within their limits, and problems as JSON."""

import asyncio
import logging
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from farfield.serving import gauges
from farfield.serving.desk import KNOWN, Desk, Reply
from farfield.serving.problems import MEDIA, Problem, RefusedError, problem_of
from farfield.serving.tokens import bearer

RUN = "/api/v1/runs/{run:str}"
PATIENCE = 30.0  # seconds in which a body has to come
log = logging.getLogger("farfield.gateway")
Call = Request[Any, Any, Any]
Sent = Response[bytes]


def make(desk: Desk, *, limit: int, ready: Callable[[], bool], local: bool) -> Litestar:
    """Make the application; bodies have at most `limit` bytes. `local`: only this machine may call, without tokens."""
    app = Litestar(
        [greet, fragments, credits_, act, newest, runs, run_, livez, readyz, metrics],
        exception_handlers={HTTPException: refused, Exception: failed},
        before_request=at_home if local else None,
        request_max_body_size=limit,
        openapi_config=None,
        logging_config=None,
    )
    app.state.desk, app.state.ready = desk, ready
    return app


@post(f"{RUN}/greet", status_code=200)
async def greet(request: Call, run: FromPath[str]) -> Sent:
    """Hello as JSON in, Welcome as JSON out."""
    secret = _secret(request, run, KNOWN)
    return _sent(await _desk(request).greet(secret, run, await _body(request)))


@post(f"{RUN}/fragments", status_code=200)
async def fragments(request: Call, run: FromPath[str]) -> Sent:
    """Store fragments."""
    secret = _secret(request, run, "ingest")
    body = await _body(request)
    return _sent(await _desk(request).fragments(secret, run, request.content_type[0], body, _sender(request)))


@post(f"{RUN}/credits", status_code=200)
async def credits_(request: Call, run: FromPath[str]) -> Sent:
    """Store rewards that come late."""
    secret = _secret(request, run, "ingest")
    body = await _body(request)
    return _sent(await _desk(request).credits(secret, run, request.content_type[0], body, _sender(request)))


@post(f"{RUN}/act", status_code=200)
async def act(request: Call, run: FromPath[str]) -> Sent:
    """Decide."""
    secret = _secret(request, run, "act")
    return _sent(await _desk(request).act(secret, run, request.content_type[0], await _body(request)))


@get(f"{RUN}/versions/newest")
async def newest(request: Call, run: FromPath[str]) -> Sent:
    """Give the newest version."""
    have = ",".join(request.query_params.getall("have", []))
    headers = request.headers
    reply = await _desk(request).newest(
        _secret(request, run, KNOWN), run, have=have, accept=headers.get("accept", ""),
        known=headers.get("if-none-match", ""),
    )  # fmt: skip
    return _sent(reply)


@get("/api/v1/runs")
async def runs(request: Call) -> Sent:
    """List runs."""
    return _sent(await _desk(request).runs(_secret(request, "", "read")))


@get(RUN)
async def run_(request: Call, run: FromPath[str]) -> Sent:
    """Say all of one run."""
    return _sent(await _desk(request).run(_secret(request, run, "read"), run))


@get("/livez")
async def livez() -> Sent:
    """Say that the process answers."""
    return _sent(Reply(b"ok\n", "text/plain"))


@get("/readyz")
async def readyz(request: Call) -> Sent:
    """Say whether clients should come."""
    if request.app.state.ready():
        return _sent(Reply(b"ok\n", "text/plain"))
    raise RefusedError(503, "the gateway opens its runs, or is stopping")


@get("/metrics")
async def metrics(request: Call) -> Sent:
    """Give what Prometheus asks for, of the runs that the token may read."""
    desk = _desk(request)
    found = desk.visible(_secret(request, "", "read"))

    def look() -> bytes:
        return gauges.text((hosted.counters(), desk.status(run).learner or {}) for run, hosted in sorted(found.items()))

    return _sent(Reply(await asyncio.to_thread(look), gauges.CONTENT_TYPE_LATEST))


async def at_home(request: Call) -> None:
    """Refuse calls that a page of somebody else makes a browser send here, under a name that leads to this machine."""
    name = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
    if name != "localhost" and not _loopback(name.strip("[]")):
        raise PermissionError(f"host {name!r}: without tokens this gateway answers to localhost alone")


def failed(_: Call, error: Exception) -> Sent:
    """Turn an error into a problem; what nobody foresaw goes into the log."""
    problem = problem_of(error)
    if problem.status == 500:
        log.error("REST: %s: %s", type(error).__name__, error, exc_info=error)
    return _refusal(problem)


def refused(_: Call, error: HTTPException) -> Sent:
    """Turn what the framework refuses into a problem."""
    status = error.status_code
    if status == 413:
        return _refusal(Problem(413, "the body is larger than this gateway takes: send fewer fragments in one request"))
    return _refusal(Problem(status, error.detail or "refused"))


def _body(request: Call) -> Any:
    return asyncio.wait_for(request.body(), PATIENCE)


def _desk(request: Call) -> Desk:
    return request.app.state.desk


def _secret(request: Call, run: str, scopes: str) -> str:
    """Look at the token before anything else is read."""
    secret = bearer(request.headers.get("authorization", ""))
    _desk(request).host.check(secret, run, scopes)
    return secret


def _sender(request: Call) -> str:
    return f"rest {request.client.host if request.client else 'unknown'}"


def _loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _sent(reply: Reply) -> Sent:
    return Response(reply.body, status_code=reply.status, media_type=reply.media, headers=dict(reply.headers))


def _refusal(problem: Problem) -> Sent:
    return _sent(Reply(problem.body(), MEDIA, problem.status, problem.headers()))
