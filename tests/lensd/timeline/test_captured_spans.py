"""Spans that a real vLLM sent, through the door to stages."""

import pytest
from checkout import ROOT

from lensd.receive.decode import Decoder
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.store.segments import Signal
from lensd.timeline.assembler import assemble_all

OTLP = ROOT / "tests" / "captures" / "vllm-0.32.0" / "otlp"


@pytest.fixture(scope="module")
def requests():
    store = MemoryStore()
    store.append(batch_of(Decoder().decode(Signal.TRACES, (OTLP / "requests.pb").read_bytes(), 1)))
    with store.cursor() as cursor:
        found = assemble_all(cursor, None, 2**60)
    store.close()
    return found


def test_two_answers_and_two_prompts_are_one_request_each_and_an_id_used_again_is_another(requests):
    spans = [(r.row.request_id, len(r.evidence.engine_spans)) for r in requests]
    assert spans.count(("chatcmpl-lens-req-a1", 1)) == 2
    assert ("cmpl-lens-req-a6-0", 2) in spans
    assert ("cmpl-lens-req-a7-0", 2) in spans
    assert len(spans) == 9


def test_tokenising_is_told_apart_from_prefill(requests):
    first = min((r for r in requests if r.row.request_id == "chatcmpl-lens-req-a1"), key=lambda r: r.row.started_at)
    assert (first.row.frontend_ms, first.row.queue_ms) == pytest.approx((20.86, 0.03), abs=0.01)
    assert first.row.prefill_ms - first.row.frontend_ms == pytest.approx(14.12, abs=0.01)
    assert first.row.ttft_ms == pytest.approx(35.0, abs=0.1)
