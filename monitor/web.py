"""The page: its routes. Everything is rendered on the server.

A page marks its changing parts (`data-live`). A short script requests the same address every two
seconds and replaces those parts. Without scripts the page shows the moment at which it was loaded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ..protocol import LakequeueError
from . import formatting
from .auth import COOKIE, HEADERS, SESSION_S, Auth, SignIn
from .charts import chart
from .engine_figures import EngineFigures
from .formatting import ORDERS
from .snapshot import TOTAL, VpnMonitor

HERE = Path(__file__).parent
ROWS_MAX = 200
MESSAGES_MAX = 50
BODY_MAX = 1_000_000


@dataclass
class Page:
    """The data of the page.

    vpn_monitors: by VPN, the default first. life: returns a message's life in lines, raises
    LakequeueError; None if there are no tables on this machine. figures: of brokers and streaming
    queries.
    """

    vpn_monitors: Mapping[str, VpnMonitor]
    auth: Auth = field(default_factory=Auth)
    life: Callable[[str], list[str]] | None = None
    figures: EngineFigures = field(default_factory=EngineFigures)


def make_app(page: Page) -> Any:
    """The page as an ASGI application."""
    return _Guard(page.auth, Starlette(routes=_Routes(page).routes()))


class _Guard:
    """Wraps every request: checks access, and adds the headers of every answer."""

    def __init__(self, auth: Auth, app: Any) -> None:
        self._auth, self._app = auth, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        answer: Any = self._app
        if not self._auth.host_allowed(request.headers.get("host", "")):
            answer = Response("This page is only for this machine: use http://127.0.0.1", 403)
        elif self._auth.token and self._locked(request):
            answer = RedirectResponse("/sign-in", 303)
        await answer(scope, receive, with_headers)

    def _locked(self, request: Request) -> bool:
        open_to_all = request.url.path == "/sign-in" or request.url.path.startswith("/static/")
        return not open_to_all and self._auth.session(request.cookies.get(COOKIE)) is None


class _Routes:
    def __init__(self, page: Page) -> None:
        self._page = page
        self._auth = page.auth
        loader = FileSystemLoader(HERE / "templates")
        self._templates = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= formatting.FILTERS
        self._templates.globals["chart"] = chart

    def routes(self) -> list[Any]:
        shown = {
            "/": self.overview, "/queue": self.queue, "/message": self.message,
            "/engine": self.engine, "/events": self.events,
        }  # fmt: skip
        return [
            *(Route(path, _reading(handler)) for path, handler in shown.items()),
            Route("/redrive", self.redrive, methods=["POST"]),
            Route("/sign-in", self.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]

    # ------------------------------------------------------------ pages

    def overview(self, request: Request) -> Response:
        """All queues of a VPN."""
        seen = self._vpn_monitor(request).look()
        text, sort = request.query_params.get("q", ""), request.query_params.get("sort", "depth")
        sort = sort if sort in ORDERS else "depth"
        queues = [q for q in seen.queues if text.lower() in q["name"].lower()]
        queues.sort(key=lambda q: (ORDERS[sort](q), q["name"]))
        return self._show(
            request, "overview.html", seen=seen, queues=queues[:ROWS_MAX], found=len(queues),
            text=text, sort=sort, sorts=list(ORDERS), past=self._vpn_monitor(request).past(TOTAL),
            alerts=formatting.alerts(seen), dead=formatting.dead_queues(seen),
        )  # fmt: skip

    def queue(self, request: Request) -> Response:
        """One queue in depth."""
        name, vpn_monitor = request.query_params.get("name", ""), self._vpn_monitor(request)
        seen = vpn_monitor.look()
        try:
            queue, first = vpn_monitor.queue(name)
        except LakequeueError as error:
            return self._show(request, "problem.html", 404, problem=str(error))
        rates = next((q for q in seen.queues if q["name"] == name), {})
        return self._show(
            request, "queue.html", seen=seen, queue=queue, rates=rates,
            messages=first[:MESSAGES_MAX], held=[m for m in first if m.state == "leased"],
            dead=[m for m in first if formatting.death(m)], past=vpn_monitor.past(name),
            times=self._page.figures.times(queue["vpn"], name), said=formatting.said(request),
        )  # fmt: skip

    def message(self, request: Request) -> Response:
        number, problem, lines = request.query_params.get("id", "").strip(), "", list[str]()
        if self._page.life is None:
            problem = "The life of a message is in the tables: start this page with --home."
        elif number:
            try:
                lines = self._page.life(number)
            except LakequeueError as error:
                problem = str(error)
        return self._show(request, "message.html", id=number, lines=lines, problem=problem)

    def engine(self, request: Request) -> Response:
        found = self._page.figures.engine()
        return self._show(
            request, "engine.html", found=found, seen=self._vpn_monitor(request).look()
        )

    def events(self, request: Request) -> Response:
        return self._show(request, "events.html", seen=self._vpn_monitor(request).look())

    # ------------------------------------------------------------ changes

    async def redrive(self, request: Request) -> Response:
        """Send dead messages back."""
        form = await _form(request)
        session = self._session(request)
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self._auth.form_allowed(session, form.get("word", ""), origin, host):
            return self._show(request, "problem.html", 403, problem="That is not allowed here.")
        name, ids = form.get("queue", ""), form.get("ids") or None
        try:
            vpn_monitor = self._vpn_monitor(request, form.get("vpn"))
            done = await run_in_threadpool(vpn_monitor.redrive, name, ids and ids.split(","))
        except LakequeueError as error:
            return self._show(request, "problem.html", 400, problem=str(error))
        back = {"name": name, "vpn": form.get("vpn", "")}
        back |= {"moved": str(done.moved), "stayed": str(done.stayed)}
        return RedirectResponse(f"/queue?{urlencode(back)}", 303)

    async def sign_in(self, request: Request) -> Response:
        """The sign-in form and its answer."""
        if self._auth.token is None:
            return RedirectResponse("/", 303)
        if request.method == "GET":
            return self._show(request, "sign_in.html", problem="")
        cookie = self._auth.sign_in((await _form(request)).get("token", ""))
        if cookie is None:
            wait = self._auth.too_many_failures
            problem = "Too many wrong tokens: wait a minute." if wait else "The token is wrong."
            return self._show(request, "sign_in.html", 429 if wait else 403, problem=problem)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, cookie, SESSION_S, httponly=True, samesite="strict")
        return answer

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        self._auth.sign_out(request.cookies.get(COOKIE))
        return RedirectResponse("/sign-in", 303)

    # ------------------------------------------------------------ aids

    def _vpn_monitor(self, request: Request, vpn: str | None = None) -> VpnMonitor:
        """The requested VPN's monitor; the first one if there is none."""
        vpn_monitors = self._page.vpn_monitors
        return vpn_monitors.get(vpn or request.query_params.get("vpn", "")) or next(
            iter(vpn_monitors.values())
        )

    def _session(self, request: Request) -> SignIn | None:
        return self._auth.session(request.cookies.get(COOKIE))

    def _show(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        vpns = list(self._page.vpn_monitors)
        vpn = request.query_params.get("vpn", "")
        vpn = vpn if vpn in vpns else vpns[0]

        def link(path: str, **query: Any) -> str:
            kept = query if vpn == vpns[0] else {**query, "vpn": vpn}
            return f"{path}?{urlencode(kept)}" if kept else path

        session = self._session(request)
        word = session.form if session is not None and self._auth.admin else ""
        text = self._templates.get_template(template).render(
            context, link=link, path=request.url.path, vpn=vpn, vpns=vpns, word=word,
            signed_in=session is not None,
        )  # fmt: skip
        return HTMLResponse(text, status)


def _reading(handler: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Run a handler in a thread, because the engine's answer may take a while."""

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(handler, request)

    return endpoint


async def _form(request: Request) -> dict[str, str]:
    """A form's fields; the body's size is bounded."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            return {}
    return {k: v[-1] for k, v in parse_qs(body.decode("utf-8", "replace")).items()}
