"""JSON captures of requests and answers: one, a list, or one after another → exchanges."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lensd_collectors.read.answer_body import asked as request_of
from lensd_collectors.read.answer_body import decoded, read_answer
from lensd_collectors.read.error_body import read_error
from lensd_collectors.read.exchange import MODEL, Exchange, HttpRows, finish, models_listed
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.rows import HttpExchange, Instant

Capture = tuple[dict[str, Any], str, int]  # document, its text, its first line
BETWEEN: Final = re.compile(r"(?:[\s,\[\]]|^[ \t]*(?:#|//)[^\n]*$)*", re.MULTILINE)  # documents, and what somebody wrote above them
_ASKED: Final = re.compile(r"\b(?:request|asked|sent|body|payload)\b[^{\n]{0,20}(?P<body>\{.*\})\s*$", re.IGNORECASE | re.MULTILINE)


def read_captures(captures: list[Capture], *, name: str, engine: str | None) -> HttpRows:
    """Exchanges of documents of the form {request: {method, path, headers, body}, status, headers, body, t_start, elapsed}."""
    return _Captures(name, engine).read(captures)


def captures(text: str) -> tuple[list[Capture], int]:
    """The capture documents of a file (one, a list, or one after another), each with its text and first line; where they end."""
    decoder, at = json.JSONDecoder(), 0
    found: list[Capture] = []
    while at < len(text):
        between = BETWEEN.match(text, at)
        heading, at = (between[0], between.end()) if between else ("", at)
        try:
            document, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if isinstance(document, dict) and isinstance(log := document.get("log"), dict) and isinstance(log.get("entries"), list):
            found += _of_browser(log["entries"], text[:end], at)
        elif isinstance(document, dict) and ("request" in document and "status" in document):
            found.append((document, text[at:end], text.count("\n", 0, at) + 1))
        elif (
            isinstance(document, dict) and "resourceSpans" not in document and (read_error(None, text[at:end]) or read_answer(text[at:end]))
        ):
            asked = _ASKED.search(heading)
            request = {"request": {"body": asked["body"]}} if asked is not None else {}
            found.append(({**request, "body": text[at:end]}, text[at:end], text.count("\n", 0, at) + 1))
        at = max(end, at + 1)
    return found, at


def _of_browser(entries: list[Any], text: str, at: int) -> Iterator[Capture]:
    """Calls as a browser exports them (HAR): times in milliseconds, an instant each."""
    begins = [match.start() for match in re.compile(r'"startedDateTime"\s*:').finditer(text, at)]
    for entry, begin, end in zip(entries, begins, [*begins[1:], len(text)], strict=False):
        request, answer = (entry.get(key) if isinstance(entry, dict) else None for key in ("request", "response"))
        if not isinstance(request, dict) or not isinstance(answer, dict):
            continue
        content, posted = answer.get("content"), request.get("postData")
        waits = entry.get("timings")
        wait = _float(waits.get("wait")) if isinstance(waits, dict) else None
        started = rfc3339(str(entry.get("startedDateTime")))
        elapsed = _float(entry.get("time"))
        status = answer.get("status")
        document = {
            "request": {
                "method": request.get("method"),
                "path": re.sub(r"^[a-z]+://[^/]*", "", str(request.get("url") or "")),
                "headers": _named(request.get("headers")),
                "body": posted.get("text") if isinstance(posted, dict) else None,
            },
            "status": status if status else None,  # 0: no answer came
            "headers": _named(answer.get("headers")),
            "body": content.get("text") if isinstance(content, dict) else None,
            "t_start": started / 1e6 if started is not None else None,
            "elapsed": elapsed / 1000 if elapsed is not None else None,
            "ttfb_ms": wait if status and wait is not None and wait >= 0 else None,
            "error": answer.get("_error") if not status else None,
        }
        yield document, text[begin:end], text.count("\n", 0, begin) + 1


def _named(headers: object) -> list[tuple[Any, Any]]:
    return [(one.get("name"), one.get("value")) for one in headers if isinstance(one, dict)] if isinstance(headers, list) else []


class _Captures:
    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine

    def read(self, captures: list[Capture]) -> HttpRows:
        exchanges, facts = [], []
        for document, text, first_line in captures:
            exchange = self._exchange(document, text, first_line)
            body = document.get("body")
            exchanges.append(exchange)
            finish(exchange, body if isinstance(body, str) else json.dumps(body, ensure_ascii=False) if body else "")
            if isinstance(body, str):
                facts += models_listed(body, f"{self._name}:{exchange.body_line}", self._engine)
        return HttpRows(exchanges=exchanges, facts=facts, unread_lines=0)

    def _exchange(self, document: dict[str, Any], text: str, first: int) -> Exchange:
        request = document.get("request")
        request = request if isinstance(request, dict) else {}
        asked = request.get("body")
        named = request_of(decoded(asked) or {}) if isinstance(asked, str) else request_of(asked) if isinstance(asked, dict) else {}
        model = MODEL.search(asked) if isinstance(asked, str) and "model" not in named else None
        answered = _offset(text, "status", 0)
        places = {
            "status": first + text.count("\n", 0, answered),
            "method": first + text.count("\n", 0, _offset(text, "method", 0)),
            "path": first + text.count("\n", 0, _offset(text, "path", 0)),
            "model": first + text.count("\n", 0, _offset(text, "body", 0)),
        }
        headers = {**_headers(request.get("headers")), **_headers(document.get("headers"))}
        started, elapsed = _float(document.get("t_start")), _float(document.get("elapsed"))
        status = document.get("status")
        row = HttpExchange(
            seen_at=Instant(round(started * 1e6)) if started and 0 < started < 1e11 else None,
            request_id=headers.get("x-request-id"),
            engine=self._engine,
            model=model["model"] if model else named.get("model"),
            max_tokens=named.get("max_tokens"),
            streaming=named.get("streaming"),
            structured=named.get("structured"),
            hop="client",
            method=_text(request.get("method")),
            path=(_text(request.get("path")) or "").partition("?")[0] or None,
            status=status if isinstance(status, int) else None,
            duration_ms=round(elapsed * 1000, 3) if elapsed is not None else None,
            ttfb_ms=_float(document.get("ttfb_ms")),
            error_message=_text(document.get("error")),
            src=f"{self._name}:{places['status']}",
        )
        length = headers.get("content-length", "")
        row.bytes = int(length) if length.isdigit() else None
        return Exchange(
            row=row,
            places=places,
            body=[],
            body_lines=[],
            body_line=first + text.count("\n", 0, _offset(text, "body", answered)),
            asked=[asked if isinstance(asked, str) else json.dumps(asked)] if asked else [],
            asked_lines=[places["model"]] if asked else [],
        )


def _offset(text: str, key: str, start: int) -> int:
    match = re.compile(rf'"{key}"\s*:').search(text, start)
    return match.start() if match else start


def _headers(raw: object) -> dict[str, str]:
    pairs: list[Any] = list(raw.items()) if isinstance(raw, Mapping) else raw if isinstance(raw, list) else []
    return {str(pair[0]).lower(): str(pair[1]) for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2}


def _float(value: object) -> float | None:
    try:
        return float(str(value)) if value is not None else None
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
