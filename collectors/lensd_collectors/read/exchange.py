"""One request and its answer while it is read, and what the answer's body adds to it."""

import re
from typing import Final

import msgspec

from lensd_collectors.read.error_body import read_error
from lensd_collectors.read.settings import Origin
from lensd_collectors.rows import ConfigFact, HttpExchange, Row

MODEL: Final = re.compile(r"\\?\"model\\?\"\s*:\s*\\?\"(?P<model>[^\"\\]+)\\?\"")


class Exchange(msgspec.Struct, kw_only=True):
    """A row while it is read, with the line of each of its columns."""

    row: HttpExchange
    places: dict[str, int] = {}
    body: list[str] = []
    body_lines: list[int] = []  # of each part of the body, blank ones left out
    body_line: int = 0  # of its first part
    in_body: bool = False


class HttpRows(msgspec.Struct, frozen=True, kw_only=True):
    exchanges: list[Exchange]
    facts: list[Row]
    unread_lines: int

    @property
    def rows(self) -> list[Row]:
        return [*(one.row for one in self.exchanges), *self.facts]


def finish(exchange: Exchange, body: str) -> None:
    """Adds what the answer's body means; the body itself is not kept."""
    row = exchange.row
    error = read_error(row.status, body, row.path)
    if error is None:
        return
    row.error_code, row.error_message = error.code, error.message
    first = exchange.body_line or exchange.places.get("status", 0)
    parts = zip(exchange.body_lines, exchange.body, strict=True)
    line = next((at for at, part in parts if any(key in part for key in ('"error"', '"message"', '"detail"'))), first)
    exchange.places |= dict.fromkeys(("error_code", "error_message", "body_shape"), line)
    if error.meaning:
        row.body_shape = error.meaning.decision.value
        row.model = row.model or error.meaning.named.get("model")


def models_listed(body: str, src: str, engine: str | None) -> list[Row]:
    """Facts of a `/v1/models` answer: the ids served and their context lengths."""
    try:
        document = msgspec.json.decode(body.strip() or "null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if not isinstance(document, dict) or document.get("object") != "list" or not isinstance(document.get("data"), list):
        return []
    facts: list[Row] = []
    for model in document["data"]:
        if not isinstance(model, dict) or model.get("object") != "model" or not isinstance(model.get("id"), str):
            continue
        facts.append(ConfigFact(subject=engine, name="served_model_name", value=model["id"], src=src, origin=Origin.EFFECTIVE))
        if isinstance(model.get("max_model_len"), int):
            length = str(model["max_model_len"])
            facts.append(ConfigFact(subject=engine, name="max_model_len", value=length, src=src, origin=Origin.EFFECTIVE))
    return facts
