"""aiohttp: each request of a session is an attempt; redirects it follows are part of it."""

from types import ModuleType
from typing import Any

from lensd_collectors.client.asked import Limits, seconds
from lensd_collectors.client.attempt import Attempt
from lensd_collectors.client.patches import Patches, Plain
from lensd_collectors.client.requests_hooks import ATTEMPT, closing, raising
from lensd_collectors.client.watch import REQUEST_ID, SESSION, TIMEOUT, TRACEPARENT, Watch

OURS = (REQUEST_ID, TRACEPARENT, TIMEOUT, SESSION)
READS = ("read", "readany", "readchunk", "readline", "readuntil", "readexactly")


def hook(module: ModuleType, watch: Watch, patches: Patches) -> None:
    """Replaces what sends in this module, what closes a response, and what raises for a status."""
    reader_class = _reader(module.StreamReader)

    def sending(plain: Plain) -> Plain:
        async def _request(self: Any, method: str, str_or_url: Any, **kwargs: Any) -> Any:
            attempt = _begin(watch, self, method, str_or_url, kwargs, module) if patches.is_on else None
            if attempt is None:
                return await plain(self, method, str_or_url, **kwargs)
            try:
                response = await plain(self, method, str_or_url, **kwargs)
            except BaseException as error:
                attempt.fail(error)
                raise
            attempt.answered(response.status, response.headers.get("Content-Type", ""), _encoding(self, response, kwargs))
            _follow(response, attempt, reader_class)
            return response

        return _request

    patches.around(module.ClientSession, "_request", sending)
    patches.around(module.ClientResponse, "raise_for_status", raising)
    patches.around(module.ClientResponse, "close", closing)
    patches.around(module.ClientResponse, "release", closing)


def _begin(watch: Watch, session: Any, method: str, url: Any, kwargs: dict[str, Any], module: ModuleType) -> Attempt | None:
    def headers() -> Any:
        """The request's own headers, as a copy that we may add to, with those of a session's that we read."""
        given = type(session.headers)(kwargs.get("headers") or {})
        for name in OURS:
            if name not in given and name in session.headers:
                given[name] = session.headers[name]
        kwargs["headers"] = given
        return given

    def limits() -> Limits:
        given = kwargs.get("timeout")
        if seconds(given) is not None:
            return Limits(total_s=seconds(given))
        timeout = given if isinstance(given, module.ClientTimeout) else session.timeout
        return Limits(seconds(timeout.sock_connect or timeout.connect), seconds(timeout.sock_read), seconds(timeout.total))

    try:
        path = session._build_url(url).path
    except Exception:
        path = str(getattr(url, "path", url)).partition("?")[0]
    return watch.begin(method, path, headers, lambda: kwargs.get("json") or kwargs.get("data"), limits)


def _encoding(session: Any, response: Any, kwargs: dict[str, Any]) -> str:
    """How the body will read; the session decodes it, unless told not to."""
    decodes = kwargs.get("auto_decompress")
    if decodes if decodes is not None else session.auto_decompress:
        return ""
    return str(response.headers.get("Content-Encoding", "")).strip().lower()


def _follow(response: Any, attempt: Attempt, reader_class: Any) -> None:
    setattr(response, ATTEMPT, attempt)
    content = response.content
    if content is None or content.at_eof():
        attempt.end()
    else:
        response.content = reader_class(content, attempt)


def _reader(plain: Any) -> Any:
    """A StreamReader in front of another: its state is the other's, its reads are told to an attempt."""

    class Watched(plain):  # type: ignore[misc]
        __slots__ = ("_attempt", "_inner")

        def __init__(self, inner: Any, attempt: Attempt) -> None:
            object.__setattr__(self, "_inner", inner)
            object.__setattr__(self, "_attempt", attempt)

        def __getattr__(self, name: str) -> Any:
            return getattr(object.__getattribute__(self, "_inner"), name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._inner, name, value)

        def read_nowait(self, n: int = -1) -> bytes:
            data: bytes = self._inner.read_nowait(n)
            _told(self._inner, self._attempt, data)
            return data

    def reading(name: str) -> Any:
        async def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            inner, attempt = self._inner, self._attempt
            attempt.asks()
            try:
                data = await getattr(inner, name)(*args, **kwargs)
            except BaseException as error:
                attempt.fail(error)
                raise
            _told(inner, attempt, data[0] if isinstance(data, tuple) else data)
            return data

        read.__name__ = name
        return read

    for name in READS:
        setattr(Watched, name, reading(name))
    return Watched


def _told(inner: Any, attempt: Attempt, data: bytes) -> None:
    attempt.received(data)
    if inner.at_eof():
        attempt.end()
