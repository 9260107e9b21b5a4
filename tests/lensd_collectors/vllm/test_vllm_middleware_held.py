"""Parts of a stream that are held and read later, many in one go: they say what they say one by one."""

import functools
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.vllm import middleware as middleware_module
from lensd_collectors.vllm.exchange import LONG_PART, MOST_UNREAD, Exchange
from lensd_collectors.vllm.middleware import MOST_WAITING
from middleware_calls import DONE, ERROR, LAST, ROLE, SSE, TEXT, USAGE, Kept, answer, call, said


def an_exchange() -> Exchange:
    """A stream that has begun."""
    exchange = Exchange(
        wall_ns=0, received=0, sent=0, method="POST", route="/v1/chat/completions", request_id="r1", trace_id="a" * 32, span_id="b" * 16,
        parent_span_id=None, session_id=None, client_timeout_ms=None,
    )  # fmt: skip
    exchange.start(200, [(b"content-type", b"text/event-stream")])
    return exchange


class Late(Kept):
    """An exporter that makes its spans later, as the real one does."""

    def __init__(self, held: int) -> None:
        super().__init__()
        self.held = held
        self.makes: list[functools.partial[list[str]]] = []

    def spans(self, make: Any, count: int) -> None:
        self.makes.append(make)


@pytest.mark.parametrize(
    ("held", "text", "waiting"),
    [(0, b"a", 7), (MOST_WAITING + 1, b"a", 0), (0, b"a" * (LONG_PART // 3), 0), (0, b"a" * LONG_PART, 2)],
)
def test_little_is_left_to_be_read_where_the_span_is_made(held: int, text: bytes, waiting: int) -> None:
    late, whole = Late(held), Kept()
    app = answer(200, SSE, ROLE, *[TEXT.replace(b'"a"', b'"%b"' % text)] * 4, LAST, DONE)
    call(late, app)
    call(whole, app)
    [make] = late.makes
    exchange = make.func.__self__  # type: ignore[attr-defined]
    assert len(exchange.parts) == waiting
    late.written += [json.loads(span) for span in make()]
    assert not exchange.parts
    same = ("lensd.stream.chunks", "lensd.bytes_sent", "lensd.outcome", "gen_ai.response.finish_reasons", "lensd.stream.done_seen")
    assert [said(late)[name] for name in same] == [said(whole)[name] for name in same]


def test_first_and_last_content_are_those_of_parts_with_text() -> None:
    """Also where parts that are alike are read in one go, some with half a character, which is no text yet."""
    late, half = Late(0), TEXT.replace(b'"a"', b'""')
    call(late, answer(200, SSE, ROLE, TEXT, half, half, TEXT.replace(b'"a"', b'"\\n"'), half, DONE))
    [make] = late.makes
    exchange = make.func.__self__  # type: ignore[attr-defined]
    stamps = exchange.stamps.copy()
    exchange.judge()
    assert (exchange.first_byte, exchange.first_content, exchange.last_content) == (stamps[0], stamps[1], stamps[4])


PARTS = st.sampled_from([ROLE, TEXT, TEXT, TEXT, TEXT.replace(b"}]", b"}] "), b"", b": ping\n\n", TEXT[:20], LAST, USAGE, DONE, ERROR])


@given(st.lists(PARTS, max_size=20))
def test_parts_read_all_at_once_say_what_they_say_one_by_one(parts: list[bytes]) -> None:
    exchanges = []
    for at_once in (True, False):
        exchange = an_exchange()
        for at, part in enumerate(parts):
            exchange.parts.append(part)
            exchange.stamps.append(1_000 + 10 * at + at % 3)
            if not at_once:
                exchange.read()
        exchange.read()
        exchanges.append(exchange)
    whole, singly = exchanges
    assert (whole.first_content, whole.last_content, whole.max_gap) == (singly.first_content, singly.last_content, singly.max_gap)
    assert whole.scanner is not None
    assert singly.scanner is not None
    assert (whole.scanner.chunks, whole.scanner.content_chunks) == (singly.scanner.chunks, singly.scanner.content_chunks)


def test_the_largest_gap_and_the_content_are_exact_however_long_they_were_held(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    instants = itertools.accumulate([1_000_000] * 100 + [70_000_000] + [1_000_000] * 300)
    monkeypatch.setattr(middleware_module.time, "monotonic_ns", lambda: next(instants))
    call(kept, answer(200, SSE, ROLE, *[TEXT] * (2 * MOST_UNREAD + 5), DONE))
    attributes = said(kept)
    assert attributes["lensd.stream.max_gap_ms"] == 70.0
    assert attributes["lensd.upstream.first_content_ms"] - attributes["lensd.upstream.first_byte_ms"] == 1.0
    assert attributes["lensd.upstream.last_byte_ms"] - attributes["lensd.upstream.last_content_ms"] == 1.0
    assert attributes["lensd.stream.chunks"] == str(2 * MOST_UNREAD + 6)
