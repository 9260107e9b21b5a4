"""What collectors in between do to what was sent: logs of many hosts under one name, a scrape in parts."""

from typing import Any

from lensd_collectors.rows import Event, Row, SpanRow
from otlp_bodies import AT_NS, AT_US, KINDS, logs, metrics, traces

from lensd.receive.decode import Decoder

S = 10**9
LABELS = {"lensd.engine": "one", "lensd.engine.kind": "vllm", "model_name": "tiny", "engine": "0"}
BANNER = "(APIServer pid=1) INFO 11-17 18:03:00 [utils.py:1] vLLM server version 0.33.0, serving model tiny"
FATAL = "(EngineCore pid=1) ERROR 11-17 18:03:00 [core.py:1] EngineCore encountered a fatal error."


def rows(decoder: Decoder, message: Any) -> dict[str, list[Row]]:
    return decoder.decode(KINDS[type(message)], message.SerializeToString(), AT_US)


def events(decoder: Decoder, message: Any) -> list[Event]:
    return [row for row in rows(decoder, message).get("events", []) if isinstance(row, Event)]


def line(host: str, body: str) -> Any:
    return logs({"body": body}, resource={"service.name": "vllm", "host.name": host})


def test_lines_of_two_hosts_are_of_two_logs_also_where_they_are_called_the_same() -> None:
    decoder = Decoder()
    assert [(e.name, e.host) for e in events(decoder, line("h1", BANNER))] == [("engine.started", "h1")]
    told = events(decoder, line("h2", FATAL))
    assert {e.host for e in told} == {"h2"}
    assert "engine.start_failed" not in {e.name for e in told}  # it is the other that is starting


def finished(at_s: int, count: float, *reasons: str) -> Any:
    series = [("vllm:request_success_total", count, {**LABELS, "finished_reason": reason}) for reason in reasons]
    return metrics(*series, resource={"service.name": "collector"}, at_ns=AT_NS + at_s * S)


def test_a_scrape_that_a_collector_sends_in_parts_is_no_restart() -> None:
    decoder = Decoder()
    parts = [finished(0, 10, "stop", "length"), finished(5, 10, "stop"), finished(5, 11, "length"), finished(10, 12, "stop", "length")]
    assert [events(decoder, part) for part in parts] == [[]] * 4


def test_a_callers_span_has_the_id_of_the_reply_where_it_knows_no_other() -> None:
    made = rows(Decoder(), traces({"name": "chat", "attributes": {"gen_ai.response.id": "chatcmpl-x"}}))["spans"]
    assert [row.request_id for row in made if isinstance(row, SpanRow)] == ["chatcmpl-x"]
