"""Where pages are: their files, and the short paths that alerts, logs and people pass on."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

SHORT_PATHS: dict[str, tuple[str, str]] = {
    # short path -> page and its query parameter
    "/i/{value:path}": ("incident", "id"),
    "/r/{value:path}": ("request", "id"),
    "/runbook/{value:path}": ("runbooks", "label"),
}


def page_file(page: str) -> str:
    """The file behind a page, as Streamlit's links and navigation want it."""
    return str(Path(__file__).with_name("pages") / f"{page}.py")


def routes(prefix: str = "") -> list[Route]:
    """Starlette routes: each short path answers 307 to the page that shows the thing.

    `prefix` is the path under which a proxy publishes the dashboard.
    """
    root = prefix.rstrip("/")
    short = [Route(path, _redirect(page, parameter, root)) for path, (page, parameter) in SHORT_PATHS.items()]
    return [*short, Route("/requests", _to_first_page(root))]


def _redirect(page: str, parameter: str, prefix: str) -> Callable[[Request], Awaitable[RedirectResponse]]:
    async def answer(request: Request) -> RedirectResponse:
        query = urlencode({parameter: request.path_params["value"]})
        return RedirectResponse(f"{prefix}/{page}?{query}", status_code=307)

    return answer


def _to_first_page(prefix: str) -> Callable[[Request], Awaitable[RedirectResponse]]:
    """The list of requests is the first page, which Streamlit knows only by the bare address."""

    async def answer(request: Request) -> RedirectResponse:
        query = request.url.query
        return RedirectResponse(f"{prefix}/{'?' + query if query else ''}", status_code=307)

    return answer
