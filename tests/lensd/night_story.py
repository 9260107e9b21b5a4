"""An engine that was started with a longer context in the evening and runs out of memory in the night: its log, its card, its caller."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from judged_house import T0, Call, House
from lensd_collectors import conventions as c
from nvml_stub.scripts import GIB, card, cards, series, text
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lensd.receive.decode import Decoder
from lensd.store.arrow import batch_of
from lensd.store.segments import Signal
from lensd.timeline.assembler import answered, sender_started, touched

HOUR = 3600.0
MORNING, EVENING, NIGHT = 0.0, 10 * HOUR, 19.2 * HOUR  # seconds after T0
BEFORE, AFTER = 4096, 32768
PID = 4471
PROMPT = 30_000
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_size": 4096,
    "torch_dtype": "float16",
    "max_position_embeddings": 32768,
}
WANT_GIB, FREE_GIB = 6.0, 1.5
USED_GIB = (*[76.5] * 12, 76.9, 77.3, 77.7, 78.1, 78.5, 78.5)
"""What the card holds, a reading each ten seconds until it is too little."""

Lines = list[tuple[float, str]]
"""Seconds after T0, and the line."""


def clock(at: float) -> datetime:
    return datetime.fromtimestamp(T0 / 1e6, UTC) + timedelta(seconds=at)


def line(at: float, said: str, *, level: str = "INFO", process: str = "APIServer pid=1") -> tuple[float, str]:
    return at, f"({process}) {level} {clock(at):%m-%d %H:%M:%S} [x.py:1] {said}"


def core(at: float, said: str, level: str = "INFO") -> tuple[float, str]:
    return line(at, said, level=level, process=f"EngineCore pid={PID}")


def start(at: float, length: int, cache_gib: float = 20.5) -> Lines:
    """A whole start with `--max-model-len`."""
    given = f"{{'model_tag': '/srv/llama', 'max_model_len': {length}, 'max_num_seqs': 8, 'gpu_memory_utilization': 0.9}}"
    return [
        line(at, "vLLM API server version 0.13.0"),
        line(at + 1, f"non-default args: {given}"),
        line(at + 3, f"Using max model len {length}"),
        core(at + 6, "Starting to load model /srv/llama..."),
        core(at + 20, "Model loading took 12.55 GiB memory and 11.1 seconds"),
        core(at + 30, f"Available KV cache memory: {cache_gib} GiB"),
        (at + 40, "(APIServer pid=1) INFO:     Application startup complete."),
    ]


def stats(at: float, running: int) -> tuple[float, str]:
    speed = "Avg prompt throughput: 900.0 tokens/s, Avg generation throughput: 700.0 tokens/s"
    return line(
        at, f"Engine 000: {speed}, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 61.0%, Prefix cache hit rate: 0.0%"
    )


def stop(at: float) -> Lines:
    return [(at, "(APIServer pid=1) INFO:     Shutting down"), (at + 1, "(APIServer pid=1) INFO:     Finished server process [1]")]


def death(at: float = NIGHT, request: str = "chatcmpl-r7") -> Lines:
    oom = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {WANT_GIB:.2f} GiB. GPU 0 has a total capacity of 80.00 GiB of "
        f"which {FREE_GIB:.2f} GiB is free. Process {PID} has 78.50 GiB memory in use. Of the allocated memory 77.60 GiB is allocated by "
        "PyTorch, and 218.40 MiB is reserved by PyTorch but unallocated."
    )
    return [
        stats(at - 6, 3),
        line(at - 3, f"Received request {request}: prompt: 'x', params: SamplingParams(n=1, max_tokens=16), lora_request: None."),
        core(at, "EngineCore encountered a fatal error.", "ERROR"),
        core(at, oom, "ERROR"),
        line(at + 1, "AsyncLLM output_handler failed.", level="ERROR"),
    ]


def whole(after: int = AFTER) -> Lines:
    """A day, and the night."""
    day = [stats(MORNING + hour * HOUR, 3) for hour in range(1, 10)]
    return [*start(MORNING, BEFORE), *day, *stop(EVENING - 30), *start(EVENING, after), stats(EVENING + HOUR, 3), *death()]


def script() -> str:
    """What the card tells, for the stand-in of its library."""
    used = [round(gib * GIB) for gib in USED_GIB]
    return text(cards(1), card(), series("0", "used", used), [f"{step} 0 procs {PID}:{bytes_}" for step, bytes_ in enumerate(used)])


def attribute(key: str, value: Any) -> KeyValue:
    kind = {bool: "bool_value", int: "int_value", float: "double_value"}.get(type(value), "string_value")
    return KeyValue(key=key, value=AnyValue(**{kind: value}))


class Told:
    """A house whose rows come through the door, as agents and gateways send them."""

    def __init__(self, house: House) -> None:
        self.house, self.decoder, self.number = house, Decoder(), 0

    def take(self, signal: Signal, message: Any, at: float) -> None:
        rows = self.decoder.decode(signal, message.SerializeToString(), T0 + round(at * 1e6))
        self.house.store.append(batch_of(rows))
        self.house.judge.touch(touched(rows), answered(rows), started=sender_started(rows))

    def log(self, lines: Iterable[tuple[float, str]]) -> None:
        for at, said in lines:
            self.number += 1
            about = {c.ENGINE: "e0", c.ENGINE_KIND: "vllm", c.LOG_FILE: "/var/log/v.log", c.LOG_LINE: self.number}
            self.event(c.EVENT_ENGINE_LOG, at, about, body=said)

    def model(self, at: float) -> None:
        """What the agent finds in the model's folder."""
        for name, value in MODEL.items():
            if name != "architectures":
                self.event(c.EVENT_CONFIG, at, {c.FACT_SUBJECT: "e0", c.FACT_NAME: name, c.FACT_VALUE: str(value), c.FACT_ORIGIN: "model"})

    def event(self, name: str, at: float, attributes: dict[str, Any], body: str = "") -> None:
        message = ExportLogsServiceRequest()
        record = (
            message.resource_logs.add()
            .scope_logs.add()
            .log_records.add(time_unix_nano=(T0 + round(at * 1e6)) * 1000, event_name=name, severity_number=9)
        )
        record.body.string_value = body
        record.attributes.extend(attribute(str(key), value) for key, value in attributes.items())
        self.take(Signal.LOGS, message, at)

    def card(self, steps: list[dict[str, Any]], until: float, every_s: float = 10.0) -> None:
        """What the sampler sent, the last reading at `until`."""
        first = until - every_s * (len(steps) - 1)
        for number, step in enumerate(steps):
            at = first + number * every_s
            message = ExportMetricsServiceRequest()
            resource = message.resource_metrics.add()
            resource.resource.attributes.append(attribute(c.HOST_NAME, "h"))
            scope = resource.scope_metrics.add()
            for told in step["metrics"]:
                point = scope.metrics.add(name=told["name"]).gauge.data_points.add(
                    time_unix_nano=(T0 + round(at * 1e6)) * 1000, as_double=told["value"]
                )
                point.attributes.extend(attribute(key, value) for key, value in told["about"].items())
            self.take(Signal.METRICS, message, at)

    def caller(self, at: float = NIGHT) -> Call:
        """A stream with a long prompt that breaks off when the engine dies."""
        call = Call(7, at=at - 3, total=3200, about={c.OUTCOME: "cut", c.DONE_SEEN: False, c.FINISH_REASONS: None, c.INPUT_TOKENS: PROMPT})
        self.house.receive(call.client() + call.gateway())
        return call


def changes(events: Iterable[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    return [(one["name"], one["was"], one["value"]) for event in events for one in json.loads(event["fields"])["changes"]]
