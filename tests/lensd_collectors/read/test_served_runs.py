"""Of a large log the inner lines of runs that were all served are passed over: their ends stay, and so do line numbers and all else."""

from pathlib import Path

import pytest
from lensd_collectors.dialects import load
from lensd_collectors.read import engine_log
from lensd_collectors.read.cite import quote
from lensd_collectors.rows import EngineSample, HttpExchange

OK = 'INFO:     10.0.0.{n}:4{n:04d} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
ODD = 'INFO:     10.0.9.9:40000 - "POST /v1/embeddings HTTP/1.1" 200 OK\n'
BAD = 'INFO:     10.0.9.9:40000 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
STATS = (
    "INFO 11-18 10:00:{second:02d} [loggers.py:127] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
    "Avg generation throughput: 2.0 tokens/s, "
    "Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
)


def log_of(path: Path) -> list[str]:
    """A run, a line of another kind in the middle of the next one, an error in the one after."""
    lines = [STATS.format(second=0, running=1), *(OK.format(n=n % 200) for n in range(5000)), STATS.format(second=10, running=2)]
    lines += [*(OK.format(n=n % 200) for n in range(300)), ODD, *(OK.format(n=n % 200) for n in range(300))]
    lines += [*(OK.format(n=n % 200) for n in range(9)), BAD, STATS.format(second=20, running=3)]
    path.write_text("".join(lines))
    return lines


@pytest.mark.parametrize("large", [0, 1 << 30], ids=["passed over", "all kept"])
def test_ends_of_runs_and_everything_else_stay(large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_log, "LARGE", large)
    path = tmp_path / "engine.log"
    lines = log_of(path)
    rows = engine_log.read_log(path, load()["vllm"], name="engine.log").rows
    samples = [row for row in rows if isinstance(row, EngineSample)]
    assert [(row.running, row.src) for row in samples] == [
        (1.0, "engine.log:1"),
        (2.0, "engine.log:5002"),
        (3.0, f"engine.log:{len(lines)}"),
    ]
    exchanges = [row for row in rows if isinstance(row, HttpExchange)]
    assert [row.src for row in exchanges if row.status == 500] == [f"engine.log:{len(lines) - 1}"]
    assert [row.src for row in exchanges if row.path == "/v1/embeddings"] == ["engine.log:5303"]
    assert exchanges[0].src == "engine.log:2"
    assert "engine.log:5001" in {row.src for row in exchanges}
    assert (len(exchanges) < 100) == (large == 0)
    for row in exchanges[::97]:
        text, place = quote(row.src or "", "status", tmp_path)
        assert place == row.src
        assert (row.peer or "?") in lines[int(place.rpartition(":")[2]) - 1]
        assert text in lines[int(place.rpartition(":")[2]) - 1]
