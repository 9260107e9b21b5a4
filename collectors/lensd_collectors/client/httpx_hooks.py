"""httpx, and httpx2 which openai 3 is built on: the same classes under two names. Each request over a transport is an attempt."""

from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

from lensd_collectors.client.asked import Limits, seconds
from lensd_collectors.client.attempt import Attempt
from lensd_collectors.client.patches import Patches, Plain
from lensd_collectors.client.watch import Watch

ATTEMPT = "lensd.attempt"


def hook(module: ModuleType, watch: Watch, patches: Patches) -> None:
    """Replaces what sends in this module, and what raises for a status."""
    stream_class, async_stream_class = _streams(module)

    def sending(plain: Plain) -> Plain:
        def handle_request(self: Any, request: Any) -> Any:
            attempt = _begin(watch, request) if patches.is_on else None
            if attempt is None:
                return plain(self, request)
            try:
                response = plain(self, request)
            except BaseException as error:
                attempt.fail(error)
                raise
            return _answered(response, attempt, stream_class)

        return handle_request

    def sending_async(plain: Plain) -> Plain:
        async def handle_async_request(self: Any, request: Any) -> Any:
            attempt = _begin(watch, request) if patches.is_on else None
            if attempt is None:
                return await plain(self, request)
            try:
                response = await plain(self, request)
            except BaseException as error:
                attempt.fail(error)
                raise
            return _answered(response, attempt, async_stream_class)

        return handle_async_request

    patches.around(module.HTTPTransport, "handle_request", sending)
    patches.around(module.AsyncHTTPTransport, "handle_async_request", sending_async)
    patches.around(module.Response, "raise_for_status", _raising)


def _begin(watch: Watch, request: Any) -> Attempt | None:
    return watch.begin(request.method, request.url.path, lambda: request.headers, lambda: _body(request), lambda: _limits(request))


def _body(request: Any) -> object:
    """The body, where it is in memory; one that is a stream is left alone."""
    try:
        return request.content
    except Exception:
        return None


def _limits(request: Any) -> Limits:
    given = request.extensions.get("timeout") or {}
    return Limits(connect_s=seconds(given.get("connect")), read_s=seconds(given.get("read")))


def _answered(response: Any, attempt: Attempt, stream_class: Any) -> Any:
    headers = response.headers
    attempt.answered(response.status_code, headers.get("content-type", ""), headers.get("content-encoding", "").strip().lower())
    response.stream = stream_class(response.stream, attempt)
    response.extensions[ATTEMPT] = attempt
    return response


def _raising(plain: Plain) -> Plain:
    def raise_for_status(self: Any) -> Any:
        try:
            return plain(self)
        except Exception as error:
            if (attempt := self.extensions.get(ATTEMPT)) is not None:
                attempt.refused(error)
            raise

    return raise_for_status


def _streams(module: ModuleType) -> tuple[type, type]:
    """Streams of the module's own kinds that tell an attempt what passes through them."""

    class Watched(module.SyncByteStream):  # type: ignore[name-defined, misc]
        def __init__(self, inner: Any, attempt: Attempt) -> None:
            self._inner, self._attempt = inner, attempt

        def __iter__(self) -> Iterator[bytes]:
            attempt, parts = self._attempt, iter(self._inner)
            while True:
                attempt.asks()
                try:
                    part = next(parts)
                except StopIteration:
                    attempt.end()
                    return
                except BaseException as error:
                    attempt.fail(error)
                    raise
                attempt.received(part)
                yield part

        def close(self) -> None:
            try:
                self._inner.close()
            finally:
                self._attempt.close()

    class AsyncWatched(module.AsyncByteStream):  # type: ignore[name-defined, misc]
        def __init__(self, inner: Any, attempt: Attempt) -> None:
            self._inner, self._attempt = inner, attempt

        async def __aiter__(self) -> AsyncIterator[bytes]:
            attempt, parts = self._attempt, aiter(self._inner)
            while True:
                attempt.asks()
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    attempt.end()
                    return
                except BaseException as error:
                    attempt.fail(error)
                    raise
                attempt.received(part)
                yield part

        async def aclose(self) -> None:
            try:
                await self._inner.aclose()
            finally:
                self._attempt.close()

    return Watched, AsyncWatched
