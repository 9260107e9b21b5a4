"""requests: each request that an adapter sends is an attempt. What urllib3 repeats below it counts as one."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from lensd_collectors.client.asked import Limits, seconds
from lensd_collectors.client.attempt import Attempt
from lensd_collectors.client.patches import Patches, Plain
from lensd_collectors.client.watch import Watch

ATTEMPT = "_lensd_attempt"


def hook(module: ModuleType, watch: Watch, patches: Patches) -> None:
    """Replaces what sends in this module, and what raises for a status."""

    def sending(plain: Plain) -> Plain:
        def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            attempt = _begin(watch, request, args, kwargs) if patches.is_on else None
            if attempt is None:
                return plain(self, request, *args, **kwargs)
            try:
                response = plain(self, request, *args, **kwargs)
            except BaseException as error:
                attempt.fail(error)
                raise
            attempt.answered(response.status_code, response.headers.get("content-type", ""))  # the library decodes it before we see it
            setattr(response, ATTEMPT, attempt)
            return response

        return send

    patches.around(module.adapters.HTTPAdapter, "send", sending)
    patches.around(module.Response, "iter_content", _iterating)
    patches.around(module.Response, "close", closing)
    patches.around(module.Response, "raise_for_status", raising)


def raising(plain: Plain) -> Plain:
    """`raise_for_status` of a response that is followed."""

    def raise_for_status(self: Any) -> Any:
        try:
            return plain(self)
        except Exception as error:
            if (attempt := self.__dict__.get(ATTEMPT)) is not None:
                attempt.refused(error)
            raise

    return raise_for_status


def _begin(watch: Watch, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attempt | None:
    path = urlsplit(request.url or "").path
    limits = _limits(kwargs.get("timeout", args[1] if len(args) > 1 else None))
    return watch.begin(request.method or "", path, lambda: request.headers, lambda: request.body, lambda: limits)


def _limits(timeout: object) -> Limits:
    """requests takes one number for connecting and for each read, two of them, or urllib3's Timeout."""
    if isinstance(timeout, tuple) and len(timeout) == 2:
        return Limits(connect_s=seconds(timeout[0]), read_s=seconds(timeout[1]))
    if seconds(timeout) is not None:
        return Limits(connect_s=seconds(timeout), read_s=seconds(timeout))
    read = getattr(timeout, "_read", None)
    return Limits(
        connect_s=seconds(getattr(timeout, "_connect", None)), read_s=seconds(read), total_s=seconds(getattr(timeout, "total", None))
    )


def _iterating(plain: Plain) -> Plain:
    """Everything of requests' own reads, `content` and `iter_lines` too, comes through here."""

    def iter_content(self: Any, chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[Any]:
        chunks: Iterator[Any] = plain(self, chunk_size, decode_unicode)
        attempt = self.__dict__.get(ATTEMPT)
        return chunks if attempt is None or attempt.is_ended else _chunks(chunks, attempt)

    return iter_content


def closing(plain: Plain) -> Plain:
    """`close` or `release` of a response that is followed."""

    def close(self: Any) -> Any:
        attempt = self.__dict__.get(ATTEMPT)
        if attempt is not None:
            attempt.close()
        return plain(self)

    return close


def _chunks(chunks: Iterator[Any], attempt: Attempt) -> Iterator[Any]:
    while True:
        attempt.asks()
        try:
            chunk = next(chunks)
        except StopIteration:
            attempt.end()
            return
        except BaseException as error:
            attempt.fail(error)
            raise
        attempt.received(chunk if isinstance(chunk, bytes) else str(chunk).encode())
        yield chunk
