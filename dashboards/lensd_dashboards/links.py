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


def routes() -> list[Route]:
    """Starlette routes: each short path answers 307 to the page that shows the thing.

    The answer is relative, so that it holds under whatever path a proxy publishes the dashboard.
    """
    short = [Route(path, _redirect(page, parameter)) for path, (page, parameter) in SHORT_PATHS.items()]
    return [*short, Route("/requests", _to_first_page)]


def _redirect(page: str, parameter: str) -> Callable[[Request], Awaitable[RedirectResponse]]:
    async def answer(request: Request) -> RedirectResponse:
        query = urlencode({parameter: request.path_params["value"]})
        return RedirectResponse(f"{_up(request)}{page}?{query}", status_code=307)

    return answer


async def _to_first_page(request: Request) -> RedirectResponse:
    """The list of requests is the first page, which Streamlit knows only by the bare address."""
    query = request.url.query
    return RedirectResponse(f"./{'?' + query if query else ''}", status_code=307)


def _up(request: Request) -> str:
    """The way from the path as it was sent, where an encoded slash parts nothing, back to the root."""
    sent: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return "../" * (sent.partition(b"?")[0].count(b"/") - 1)
