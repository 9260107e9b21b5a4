"""A time without a zone, beside files that name theirs."""

from pathlib import Path

import pytest

from lensd.diagnosis.clocks import instants_of
from lensd.diagnosis.folder import read_folder

LINE = (
    "(APIServer pid=1) INFO 11-03 {time} [loggers.py:127] Engine 000: Avg prompt throughput: 500.0 tokens/s, "
    "Avg generation throughput: 300.0 tokens/s, Running: 5 reqs, Waiting: 0 reqs, GPU KV cache usage: 23.0%, Prefix cache hit rate: 0.0%\n"
)
ACCESS = '10.0.0.1 - - [03/Nov/2026:{time} {zone}] "POST /v1/chat/completions HTTP/1.1" 499 0 "-" "curl/8" rt=30.0\n'
DAY = 1793664000  # 2026-11-03 00:00:00 UTC


def first_of(folder: Path, name: str) -> int:
    rows = read_folder([folder]).files[name].rows
    return min(at for some in rows.values() for at in instants_of(some)) // 1_000_000 - DAY


@pytest.mark.parametrize(
    ("engine", "hours"),
    [
        ("14:00:10", 6),  # by the wall clock of the proxy's zone
        ("06:00:10", 6),  # a container's clock, which was UTC all along
        ("20:00:10", 20),  # of another time either way: nothing says whose clock it was
    ],
)
def test_a_log_without_a_zone_is_of_the_time_that_the_others_are_of(tmp_path: Path, engine: str, hours: int) -> None:
    (tmp_path / "nginx.log").write_text("".join(ACCESS.format(time=f"14:00:{at:02d}", zone="+0800") for at in (0, 20, 40)))
    (tmp_path / "vllm.log").write_text(LINE.format(time=engine) + LINE.format(time=f"{engine[:-2]}20"))
    assert first_of(tmp_path, "nginx.log") == 6 * 3600
    assert first_of(tmp_path, "vllm.log") == hours * 3600 + 10


def test_what_was_moved_says_of_what_time_the_next_one_is(tmp_path: Path) -> None:
    (tmp_path / "nginx.log").write_text("".join(ACCESS.format(time=f"14:00:{at:02d}", zone="+0800") for at in (0, 20, 40)))
    (tmp_path / "vllm.log").write_text(LINE.format(time="14:00:10") + LINE.format(time="14:20:10"))
    (tmp_path / "later.log").write_text(LINE.format(time="14:10:00") + LINE.format(time="14:11:00"))
    assert first_of(tmp_path, "later.log") == 6 * 3600 + 600


def test_two_zones_leave_it_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "nginx.log").write_text("".join(ACCESS.format(time="14:00:00", zone=zone) for zone in ("+0800", "-0500")))
    (tmp_path / "vllm.log").write_text(LINE.format(time="10:00:10"))
    assert first_of(tmp_path, "vllm.log") == 10 * 3600 + 10
