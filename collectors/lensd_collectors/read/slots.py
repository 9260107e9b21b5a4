"""llama.cpp's `/slots`, whole or a slot a line: what runs, how much context each slot has, and what a request in it may still write."""

from collections.abc import Mapping
from typing import Any

import msgspec

from lensd_collectors.read.answer_body import LARGEST
from lensd_collectors.read.settings import Origin
from lensd_collectors.rows import ConfigFact, EngineSample, Event, Instant, Row

SLOT = "engine.slot"


def is_slot(document: object) -> bool:
    return isinstance(document, dict) and "n_ctx" in document and "is_processing" in document


def read_slots(text: str, *, engine: str | None, src: str, number: int, at: Instant | None) -> list[Row]:
    """Rows of one answer of `/slots`; empty for anything else. `n_remain` and `n_predict` -1: without a limit."""
    try:
        document = msgspec.json.decode(text[:LARGEST])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    slots = [one for one in (document if isinstance(document, list) else [document]) if is_slot(one)]
    if not slots:
        return []
    rows: list[Row] = []
    context = slots[0]["n_ctx"]
    if isinstance(context, int):
        rows.append(_fact("max_model_len", context, engine, src))
    if isinstance(document, list):
        running = float(sum(1 for slot in slots if slot["is_processing"]))
        rows.append(_fact("max_num_seqs", len(slots), engine, src))
        rows.append(EngineSample(seen_at=at, seq=number, engine=engine, running=running, slots=float(len(slots)), src=src))
    for slot in slots:
        if slot["is_processing"]:
            fields = msgspec.json.encode(_of(slot)).decode()
            rows.append(Event(seen_at=at, seq=number, engine=engine, name=SLOT, severity="info", fields=fields, line=text[:500], src=src))
    return rows


def _of(slot: Mapping[str, Any]) -> dict[str, int]:
    following = slot.get("next_token")
    after: Mapping[str, Any] = following[0] if isinstance(following, list) and following and isinstance(following[0], dict) else {}
    after = following if isinstance(following, dict) else after
    params = slot.get("params") if isinstance(slot.get("params"), dict) else {}
    assert isinstance(params, dict)
    said = {
        "slot": slot.get("id"), "task": slot.get("id_task"), "context": slot.get("n_ctx"), "prompt_tokens": slot.get("n_prompt_tokens"),
        "cached_tokens": slot.get("n_prompt_tokens_cache"), "max_tokens": params.get("max_tokens", params.get("n_predict")),
        "remaining": after.get("n_remain"), "decoded": after.get("n_decoded"),
    }  # fmt: skip
    return {name: value for name, value in said.items() if isinstance(value, int) and not isinstance(value, bool)}


def _fact(name: str, value: int, engine: str | None, src: str) -> ConfigFact:
    return ConfigFact(subject=engine, name=name, value=str(value), src=src, origin=Origin.EFFECTIVE)
