"""openai, above its HTTP library: what it repeats is one call, and its own errors bear the id too."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

from lensd_collectors.client.calls import one_call
from lensd_collectors.client.naming import name_request
from lensd_collectors.client.patches import Patches, Plain, owner
from lensd_collectors.client.watch import REQUEST_ID, TRACEPARENT


def hook(module: ModuleType, patches: Patches) -> None:
    """Replaces what asks in this module, and what reads its streams. The HTTP library below is left to its own hooks."""

    def asking(plain: Plain) -> Plain:
        def request(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not patches.is_on:
                return plain(self, *args, **kwargs)
            with one_call() as call:
                try:
                    return plain(self, *args, **kwargs)
                except Exception as error:
                    if call.attempts:
                        name_request(error, call.request_id)
                    raise

        return request

    def asking_async(plain: Plain) -> Plain:
        async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not patches.is_on:
                return await plain(self, *args, **kwargs)
            with one_call() as call:
                try:
                    return await plain(self, *args, **kwargs)
                except Exception as error:
                    if call.attempts:
                        name_request(error, call.request_id)
                    raise

        return request

    patches.around(owner(module.OpenAI, "request"), "request", asking)
    patches.around(owner(module.AsyncOpenAI, "request"), "request", asking_async)
    patches.around(module.Stream, "__iter__", _iterating)
    patches.around(module.Stream, "__next__", _stepping)
    patches.around(module.AsyncStream, "__aiter__", _iterating_async)
    patches.around(module.AsyncStream, "__anext__", _stepping_async)


def _name(error: BaseException, stream: Any) -> None:
    """Puts the id of the stream's request into the error, where that request was one of ours."""
    with contextlib.suppress(Exception):
        headers = stream.response.request.headers
        if TRACEPARENT in headers and REQUEST_ID in headers:
            name_request(error, headers[REQUEST_ID])


def _iterating(plain: Plain) -> Plain:
    def __iter__(self: Any) -> Iterator[Any]:
        try:
            yield from plain(self)
        except Exception as error:
            _name(error, self)
            raise

    return __iter__


def _stepping(plain: Plain) -> Plain:
    def __next__(self: Any) -> Any:
        try:
            return plain(self)
        except StopIteration:
            raise
        except Exception as error:
            _name(error, self)
            raise

    return __next__


def _iterating_async(plain: Plain) -> Plain:
    async def __aiter__(self: Any) -> AsyncIterator[Any]:
        try:
            async for each in plain(self):
                yield each
        except Exception as error:
            _name(error, self)
            raise

    return __aiter__


def _stepping_async(plain: Plain) -> Plain:
    async def __anext__(self: Any) -> Any:
        try:
            return await plain(self)
        except StopAsyncIteration:
            raise
        except Exception as error:
            _name(error, self)
            raise

    return __anext__
