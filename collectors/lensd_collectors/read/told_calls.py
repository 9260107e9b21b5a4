"""Single lines that tell of a whole call, as pairs of names and values or as an access log does → exchanges, with what lies around."""

import re
from typing import Any, Final

from lensd_collectors.dialects import milliseconds
from lensd_collectors.read import http_lines as forms
from lensd_collectors.read.call_fields import asked_of, exchange_of
from lensd_collectors.read.copied import MOST_SETTINGS, Copied
from lensd_collectors.read.exchange import Exchange, finish
from lensd_collectors.read.lines import Clock, dated
from lensd_collectors.rows import Event, HttpExchange

_PROGRESS: Final = (
    "chunks",
    "max_gap_ms",
    "duration_ms",
    "ttfb_ms",
    "bytes",
    "prompt_tokens",
    "completion_tokens",
    "max_tokens",
    "limit_ms",
)
_READ: Final = re.compile(r"\b(?:usage\b.*?)?(?:prompt_tokens|prompt_eval_count|input_tokens)\b")
_NEXT: Final = 3  # lines between a proxy's error and the access line of the call


class ToldCalls(Copied):
    """Takes a call from one line; what was said of it when it began, and how far one had come that failed, are joined to it."""

    def __init__(self, name: str, engine: str | None, clock: Clock) -> None:
        super().__init__(name, engine, clock)
        self._of_hop = False  # a proxy's own log, as an error of its showed

    def _paired(self, rest: str, number: int) -> bool:
        """A line of pairs that tells of one call, or how far the one that failed had come."""
        row = self._pairs(rest, number)
        if row is None:
            return False
        if self._failed is not None and row.status is None and row.finish_reason is None:  # how far the call that failed had come
            self._further(row, number)
            return True
        self._close()
        row.seen_at = row.seen_at or self._at
        row.status = 200 if row.status is None else row.status  # it tells why the answer ended
        if row.prompt_tokens is not None and (counted := _READ.split(rest)[0]) != rest:  # and what was counted before it was sent
            said = self._strays.read(counted, number, self._at, apart=True) or ()
            self._facts += [one for one in said if isinstance(one, Event) and one.name == "prompt.counted"]
        self._done.append(Exchange(row=row, places=self._merged, body=[], body_lines=[]))
        self._merged = {}
        return True

    def _pairs(self, rest: str, number: int) -> HttpExchange | None:
        """The exchange that a line of pairs tells of; what it says of one that begins is kept for the lines that follow."""
        pairs = forms.pairs_of(rest)
        if len(pairs) < 2 and not any(value in self._begun for value in pairs.values()):
            return None
        row = exchange_of(pairs, engine=self._engine, src=f"{self._name}:{number}", hop="client", clock=self._clock)
        key = next((pairs[one] for one in forms.CALL_IDS if one in pairs), None)
        sent = forms.SENT.search(rest) if key is not None and row is None else None
        begun = asked_of(pairs) | ({"method": sent["method"], "path": sent["path"]} if sent else {})
        if key is not None and row is None and ("prompt_tokens" in begun or sent is not None):
            if len(self._begun) < MOST_SETTINGS:
                self._begun[key] = (begun, number)
                if self._at is not None:
                    self._begun_at[key] = self._at
            return None
        if key is not None and row is not None and key in self._begun:
            self._merge(row, key)
        if key is not None and row is None and key in self._begun and (first := forms.FIRST.search(rest)):
            row = HttpExchange(engine=self._engine, hop="client", status=200, streaming=True, src=f"{self._name}:{number}")
            row.ttfb_ms = float(first["v"]) * (1 if first["unit"] == "ms" else 1000)
            self._merge(row, key)
        if key is not None and row is None and key in self._begun and (served := forms.SERVED.search(rest)):
            row = HttpExchange(engine=self._engine, hop="client", status=200, src=f"{self._name}:{number}")
            row.duration_ms = float(served["v"]) * (1 if served["unit"] == "ms" else 1000)
            self._merge(row, key)
        if row is None and "prompt_tokens" in begun:
            self._request, self._request_places = begun, dict.fromkeys(begun, number)
        return row

    def _further(self, row: HttpExchange, number: int) -> None:
        assert self._failed is not None
        for column in _PROGRESS:
            if (value := getattr(row, column)) is not None and getattr(self._failed.row, column) is None:
                setattr(self._failed.row, column, value)
                self._failed.places[column] = number

    def _merge(self, row: HttpExchange, key: str) -> None:
        """What was said of a call when it began."""
        begun, number = self._begun[key]
        for column, value in begun.items():
            if getattr(row, column) is None:
                setattr(row, column, value)
        self._merged = dict.fromkeys(begun, number)

    def _access(self, rest: str, number: int) -> bool:
        """A line of an access log of whatever form, known by status, method and path."""
        match = forms.ACCESS.search(rest)
        if match is None or rest[: match.start() + 1].strip().isdigit():  # counted, not told
            return False
        pairs: dict[str, Any] = {
            **forms.pairs_of(match["rest"]),
            "status": int(match["status"] or match["code"]),
            "method": match["method"] or match["verb"],
            "path": match["path"] or match["target"],
        }
        if match["upstream"]:
            pairs["upstream"] = match["upstream"]
        hop = (
            None
            if "rt" in pairs or pairs.keys() & {"upstream_status", "peer", "client"} or ("upstream" in pairs and not match["upstream"])
            else "client"
        )
        row = exchange_of(pairs, engine=self._engine, src=f"{self._name}:{number}", hop=hop or "proxy")
        if row is None:
            return False
        logged = forms.LOGGED_AT.search(rest[: match.start()])
        row.seen_at = row.seen_at or (dated(logged["at"]) if logged is not None else None) or self._at
        row.duration_ms = row.duration_ms if row.duration_ms is not None else forms.took_ms(match["rest"])
        exchange = Exchange(row=row, places={}, body=[], body_lines=[])
        asker, lasted = forms.ASKER.search(rest[: match.start()]), forms.LASTED.match(match["rest"])
        if lasted and row.duration_ms is None:
            row.duration_ms = milliseconds(lasted["span"])
            row.bytes = int(lasted["bytes"]) if (lasted["bytes"] or "").isdigit() else row.bytes
            if asker:  # who serves it says who asked
                row.hop, row.peer = "proxy", row.peer or asker["peer"]
            self._explained(exchange, number)
            if self._of_hop and row.hop == "client":
                row.hop = "proxy"
        if (said := forms.SAID.search(match["rest"])) is not None and (row.status or 0) >= 400:
            exchange.body, exchange.body_lines, exchange.body_line = [forms.as_json(said["body"])], [number], number
            finish(exchange, exchange.body[0])
        self._close()
        self._done.append(exchange)
        return True

    def _explained(self, exchange: Exchange, number: int) -> None:
        """What the line above said of an upstream that failed belongs to the call that ends with its error."""
        failed = self._failed
        if failed is None or failed.row.hop != "proxy" or (exchange.row.status or 0) < 500:
            return
        if number - failed.places.get("error_code", 0) > _NEXT:
            return
        for column in ("error_code", "error_message", "limit_kind", "limit_ms"):
            setattr(exchange.row, column, getattr(failed.row, column))
            exchange.places[column] = failed.places.get(column) or failed.places["error_code"]
        self._failed, self._of_hop = None, True
