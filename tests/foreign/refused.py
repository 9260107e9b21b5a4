"""Bodies that the door refuses, or takes only a part of, with marks in them: what is said of them must not quote them."""

import json
from dataclasses import dataclass, field
from typing import Final

from canaries import Planted

PROTOBUF: Final = {"content-type": "application/x-protobuf"}
JSON: Final = {"content-type": "application/json"}


@dataclass
class Body:
    about: str
    status: int
    content: bytes
    headers: dict[str, str] = field(default_factory=lambda: PROTOBUF)
    path: str = "/v1/traces"
    token: str = ""  # instead of the right one


def refused(p: Planted) -> list[Body]:
    def text(place: str) -> str:
        return f"{p.said(place)} {p.key('openai', place)}"

    unknown = text("unknown field of protobuf").encode()
    assert len(unknown) < 128 + 128
    return [
        Body("JSON that ends too early", 400, f'{{"resourceSpans": "{text("broken JSON")}'.encode(), JSON),
        Body("JSON of another form", 400, json.dumps({"resourceSpans": [{"scopeSpans": text("JSON of another form")}]}).encode(), JSON),
        Body("a JSON list", 400, json.dumps([text("a JSON list")]).encode(), JSON),
        Body("a wrong id", 400, _one_span({"traceId": text("a wrong id")}), JSON),
        Body("a wrong number", 400, _one_span({"startTimeUnixNano": text("a wrong number")}), JSON),
        Body("an unknown field of JSON", 200, _one_span({"prompt": text("unknown field of JSON")}), JSON),
        Body("no protobuf", 400, b"\x0a\xff\xff" + text("no protobuf").encode()),
        Body("no gzip", 400, text("no gzip").encode(), PROTOBUF | {"content-encoding": "gzip"}),
        # field 15, wire type 2, a length of two bytes
        Body("an unknown field of protobuf", 200, bytes([0x7A, len(unknown) & 127 | 128, len(unknown) >> 7]) + unknown),
        Body("text that is no UTF-8", 400, b"\x0a\x08\x0a\x06\x0a\x04\x0a\x02" + text("no UTF-8").encode() + b"\xff"),
        Body("a wrong token", 401, b"", token=p.key("opaque", "a wrong token")),
        Body(
            "a key in the address",
            200,
            _one_span({"kind": "2"}),
            JSON,
            path=f"/v1/traces?api_key={p.key('opaque', 'a key in the address')}",
        ),
        Body("no such path", 404, b"", path=f"/v1/{p.key('openai', 'no such path')}"),
    ]


def _one_span(fields: dict[str, str]) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "n", **fields}]}]}]}).encode()
