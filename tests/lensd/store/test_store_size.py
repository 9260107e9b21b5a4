"""How many bytes a request takes, fresh and packed."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from store_rows import DAY_US, NOV_29

from lensd.store.folder import FolderStore
from lensd.store.rollover import roll_over

DAY = NOV_29 // DAY_US
COUNT = 20_000  # requests, over an hour
BUDGETS = {"spans_fresh": 950, "spans_packed": 600, "folder_fresh": 1800, "folder_packed": 1000}

_REQUESTS = f"""
CREATE TABLE made AS
SELECT number, md5(number::VARCHAR) AS trace, hash(number) AS chance, 'chatcmpl-' || md5('c' || number) AS reply,
       make_timestamp({NOV_29} + number * 3_600_000_000 // {COUNT}) AS begun
FROM range({COUNT}) range(number)
"""
_COMMON = (
    '\'"gen_ai.operation.name":"chat","gen_ai.request.model":"model-\' || (chance % 5) || \'","gen_ai.response.model":"model-\''
    ' || (chance % 5) || \'-instruct","lensd.key_id":"key-\' || (chance % 40) || \'","gen_ai.request.max_tokens":\''
    " || ((chance % 4 + 1) * 256) || ',\"gen_ai.usage.input_tokens\":' || (chance % 6000) || ',\"gen_ai.usage.output_tokens\":'"
    " || (chance % 700) || ',\"gen_ai.request.temperature\":0.7'"
)
_HTTP = (
    '\',"http.request.method":"POST","http.route":"/v1/chat/completions","http.response.status_code":\' ||'
    ' if(chance % 33 = 0, 504, 200) || \',"server.address":"10.0.0.\' || (chance % 8) || \'","server.port":8000,\''
    ' || \'"network.protocol.version":"1.1","lensd.streaming":true\''
)
_ENGINE = (
    '\',"gen_ai.response.id":"\' || reply || \'","gen_ai.latency.time_in_queue":\' || (its_chance % 90000) / 1e6'
    " || ',\"gen_ai.latency.time_to_first_token\":' || (its_chance % 900000) / 1e6 || ',\"gen_ai.latency.e2e\":'"
    ' || (its_chance % 9000000) / 1e6 || \',"gen_ai.response.finish_reasons":["stop"],"lensd.preemptions":0,"vllm.version":"0.14.0"\''
)
_SPANS = f"""
SELECT trace AS trace_id, substr(md5((number * 7 + place)::VARCHAR), 1, 16) AS span_id,
       if(place = 0, NULL, substr(md5((number * 7)::VARCHAR), 1, 16)) AS parent_span_id,
       ['POST /v1/chat/completions', 'lensd.auth_routing', 'lensd.upstream', 'lensd.streaming', 'llm_request', 'prefill', 'decode']
         [place + 1] AS name,
       ['server', 'internal', 'client', 'internal', 'server', 'internal', 'internal'][place + 1] AS kind,
       if(place < 4, 'lensd.gateway', 'vllm') AS service, 'host-' || (chance % 4) AS instance, 'engine-' || (chance % 4) AS engine,
       trace AS request_id, begun + to_microseconds((its_chance % 400000)::BIGINT) AS started_at,
       begun + to_microseconds((its_chance % 3000000 + 400000)::BIGINT) AS ended_at, (its_chance % 3000000) / 1e3 AS duration_ms,
       if(chance % 33 = 0, 'error', 'ok') AS status, '{{' || {_COMMON} || if(place < 4, {_HTTP}, {_ENGINE}) || '}}' AS attributes,
       'span:' || substr(md5((number * 7 + place)::VARCHAR), 1, 16) AS src
FROM (SELECT *, hash(number * 7 + place) AS its_chance FROM made, range(7) range(place)) ORDER BY number, place
"""
_OTHERS = {
    "requests": """
        SELECT chance AS request_key, revision, trace AS request_id, trace AS trace_id,
          substr(md5((number * 7)::VARCHAR), 1, 16) AS span_id,
          reply AS engine_request_id, 'model-' || (chance % 5) AS model, 'model-' || (chance % 5) AS served_model,
          'engine-' || (chance % 4) AS engine, '10.0.0.' || (chance % 8) || ':8000' AS upstream, 'key-' || (chance % 40) AS key_id,
          '/v1/chat/completions' AS route, true AS streaming, begun AS started_at,
          begun + to_microseconds((chance % 3000000)::BIGINT) AS ended_at,
          revision = 1 AS settled, if(chance % 33 = 0, 'timed_out', 'ok') AS outcome, if(chance % 33 = 0, 504, 200) AS status,
          'gateway' AS said_by, (chance % 6000)::BIGINT AS prompt_tokens, (chance % 700)::BIGINT AS completion_tokens, 512 AS max_tokens,
          1 AS attempts, (chance % 900000) / 1e3 AS ttft_ms, (chance % 60000) / 1e3 AS tpot_ms, (chance % 200000) / 1e3 AS max_gap_ms,
          (chance % 700)::BIGINT AS chunks, (chance % 70000)::BIGINT AS bytes_sent, true AS done_seen, (chance % 3000000) / 1e3 AS total_ms,
          'ok' AS client_state, 'ok' AS queue_state, (chance % 90000) / 1e3 AS queue_ms, (chance % 90000) / 1e3 AS queue_exclusive_ms,
          'plugin' AS queue_source, 'ok' AS prefill_state, (chance % 800000) / 1e3 AS prefill_ms,
          (chance % 800000) / 1e3 AS prefill_exclusive_ms, 'plugin' AS prefill_source, 'ok' AS decode_state,
          (chance % 2000000) / 1e3 AS decode_ms, (chance % 2000000) / 1e3 AS decode_exclusive_ms, 'plugin' AS decode_source,
          'no-incident' AS label, 'likely' AS confidence, 'span:' || substr(md5((number * 7)::VARCHAR), 1, 16) AS src
        FROM made, range(2) range(revision) ORDER BY number, revision""",
    "events": """
        SELECT begun + to_microseconds(1_000_000 * place) AS seen_at, number AS seq, 'host-' || (chance % 4) AS host,
          'engine-' || (chance % 4) AS engine, if(place = 0, reply, trace) AS request_id, trace AS trace_id,
          ['lensd.engine.request', 'lensd.request.started'][place + 1] AS name, 'info' AS severity,
          '{"prompt_tokens":' || (chance % 6000) || ',"queued_ms":' || (chance % 90000) / 1e3 || ',"prefill_ms":'
            || (chance % 800000) / 1e3 || ',"finish_reason":"stop"}' AS fields,
          'log:host-' || (chance % 4) || '/vllm' AS src
        FROM made, range(2) range(place) ORDER BY number, place""",
}


def sizes(folder: Path, tables: dict[str, str]) -> tuple[float, float]:
    """Bytes a request of a day with these tables' rows, fresh and packed."""
    store = FolderStore(folder, clock=lambda: NOV_29 / 1e6)
    with duckdb.connect() as maker:
        maker.execute(_REQUESTS)
        for table, sql in tables.items():
            for batch in maker.execute(sql).to_arrow_reader(8192):
                store.append({table: pa.Table.from_batches([batch])})
    packed = roll_over(store, DAY)
    store.close()
    assert packed is not None
    fresh = (folder / "day-20261129.duckdb").stat().st_size  # closing has written its log into it
    return fresh / COUNT, packed.bytes_after / COUNT


@pytest.mark.slow
def test_bytes_of_a_request(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    spans, others = sizes(tmp_path / "spans", {"spans": _SPANS}), sizes(tmp_path / "others", _OTHERS)
    figures = {
        "spans_fresh": spans[0],
        "spans_packed": spans[1],
        "folder_fresh": spans[0] + others[0],
        "folder_packed": spans[1] + others[1],
    }
    rounded = {name: round(value) for name, value in figures.items()}
    record_property("figures", f"bytes a request, 7 spans with 15 attributes: {rounded}, budgets {BUDGETS}")
    assert {name for name, value in rounded.items() if value > BUDGETS[name]} == set()
