"""An out-of-memory's post-mortem as lines of text."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from lensd.records import InFlight, MemoryReading, Phase, PostMortem

GIB: Final = 1 << 30
PHASES: Final[Mapping[Phase, str]] = {
    "load": "while the weights were loaded",
    "profiling": "while the start was measured",
    "capture": "while graphs were captured",
    "spike": "while it served: one step asked for too much",
    "fragmentation": "while it served: enough was left, in pieces",
    "host_ram": "in the host's memory",
    "other_process": "another process held the card",
    "kv_cache": "the KV cache cannot hold one request",
    "unknown": "when in the engine's life is not known",
}
NUMBERS: Final = {
    "want_bytes": "asked for",
    "free_bytes": "free",
    "total_bytes": "the card has",
    "allocated_bytes": "allocated",
    "unallocated_bytes": "reserved but unused",
    "need_bytes": "needed",
    "have_bytes": "there",
    "wanted_bytes": "to be taken",
    "anon_rss_bytes": "resident",
}
SETTINGS: Final = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "tensor_parallel_size", "quantization", "dtype",
    "cache_dtype", "enforce_eager", "cpu_offload_gb",
)  # fmt: skip
MOST_SHOWN: Final = 5


def post_mortem_lines(found: PostMortem) -> list[str]:
    """One line a subject, each with what is known or that it was not recorded."""
    where = ", ".join(filter(None, [f"engine {found.engine}" if found.engine else "", f"GPU {found.gpu}" if found.gpu else ""]))
    lines = [f"{_clock(found.at)}{f' on {where}' if where else ''}: {PHASES[found.phase]}"]
    if found.numbers:
        known = [(said, found.numbers[name]) for name, said in NUMBERS.items() if name in found.numbers]
        lines.append("numbers: " + ", ".join(f"{said} {_gib(value)}" for said, value in known))
    lines += [f"before: {_curve(found.curve)}", f"in flight: {_in_flight(found.in_flight)}"]
    lines.append(f"likely trigger: {f'{found.trigger.request_id}, {found.trigger.because}' if found.trigger else 'not recorded'}")
    settings = [f"{name} {found.settings[name]}" for name in SETTINGS if name in found.settings]
    lines.append(f"settings: {', '.join(settings) or 'not recorded'}")
    if found.changes:
        changes = [f"{c.name} {_or_none(c.was)} -> {_or_none(c.value)}" for c in found.changes]
        lines.append(f"changed at that start: {', '.join(changes)}")
    if found.fits is not None:
        lines.append(f"the KV cache of that start holds one request of up to {found.fits} tokens")
    return lines


def _curve(curve: tuple[MemoryReading, ...]) -> str:
    """First, highest and last of what is told best: the card, else the engine's processes."""
    for name, of in (("used_bytes", "of the card"), ("pid_used_bytes", "of its processes on the card"), ("rss_bytes", "resident")):
        told = [(reading.at, value) for reading in curve if (value := getattr(reading, name)) is not None]
        if told:
            (first_at, first), (last_at, last) = told[0], told[-1]
            most = max(value for _, value in told)
            return f"{_gib(first)} {of} at {_time(first_at)}, {_gib(last)} at {_time(last_at)}, {_gib(most)} at most"
    return "not recorded"


def _in_flight(requests: tuple[InFlight, ...] | None) -> str:
    if requests is None:
        return "not recorded"
    shown = [_request(request) for request in requests[:MOST_SHOWN]]
    more = [f"{len(requests) - MOST_SHOWN} more"] if len(requests) > MOST_SHOWN else []
    return ", ".join(shown + more)


def _request(request: InFlight) -> str:
    parts = [f"{request.prompt_tokens} prompt tokens" if request.prompt_tokens is not None else "", request.stage or ""]
    parts.append(f"for {request.age_ms / 1000:.1f} s" if request.age_ms is not None else "")
    parts.append("" if request.is_sure else "perhaps ended")
    about = ", ".join(filter(None, parts))
    return f"{request.request_id} ({about})" if about else request.request_id


def _gib(value: int) -> str:
    return f"{value / GIB:.2f} GiB"


def _or_none(text: str | None) -> str:
    return "not given" if text is None else text


def _clock(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _time(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1e6, UTC):%H:%M:%S}"
