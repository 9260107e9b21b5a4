"""Growth told from what only looks like it: the macros on courses one can reckon by hand, the rules on two hundred made-up ones."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trend_drive as drive
import trend_series as made
from lensd_collectors.rows import ConfigFact, EngineSample, Row

from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.runbook import load
from lensd.diagnosis.scope import Scope
from lensd.diagnosis.triage import triage
from lensd.records import Finding
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.limits import Limits

SEEDS = {"tuned on": 1, "never looked at while tuning": 7_041_776}
CAPTURES = Path(__file__).parents[2] / "captures"
BOOKS = load()
OURS = ("kv-cache-leak", "gpu-memory-leak", "scheduler-deadlock-never-fits")
S = made.S


def of(sql: str, readings: Sequence[float | None], at_s: Sequence[float] | None = None) -> object:
    """`sql` over a gauge `v` read at `t`, one reading a second where nothing else is said."""
    at = list(at_s if at_s is not None else range(len(readings)))
    store = MemoryStore()
    with store.cursor() as cursor:
        (row,) = cursor.execute(
            f"select {sql} from (select unnest(?::double[]) as v, make_timestamp((unnest(?::double[]) * 1e6)::bigint) as t)",
            [list(readings), at],
        ).fetchall()
    store.close()
    return row[0]


@pytest.mark.parametrize(
    ("readings", "at_s", "slope"),
    [
        ([0, 2, 4, 6, 8], None, 2.0),
        ([8, 6, 4, 2, 0], None, -2.0),
        ([0, 2, 900, 6, 8, 10, 12], None, 2.0),  # one reading out of place
        ([0, 10, 20, 30, 40], [0, 5, 10, 15, 20], 2.0),
        ([0, 2, 4, 60, 62], [0, 1, 2, 30, 31], 2.0),  # a gap
        ([5, 5, 5, 5, 5], None, 0.0),
        ([0, 2, None, 6, math.inf, 10, 12, math.nan], None, 2.0),
        ([1, 2, 3, 4], None, None),
        ([1, 2, 3, 4, 5], [7, 7, 7, 7, 7], None),  # all of one instant
        ([], None, None),
    ],
)
def test_theil_sen(readings: list[float | None], at_s: list[float] | None, slope: float | None) -> None:
    found = of("theil_sen(v, t)", readings, at_s)
    assert found == (None if slope is None else pytest.approx(slope))


def test_theil_sen_of_a_long_course_is_that_of_all_of_it() -> None:
    chance = random.Random(3)
    readings = [0.5 * at + chance.gauss(0, 20) for at in range(20_000)]
    assert of("theil_sen(v, t)", readings) == pytest.approx(0.5, rel=0.01)


def test_theil_sen_is_little_moved_by_a_quarter_of_wild_readings() -> None:
    chance = random.Random(4)
    readings = [3.0 * at + (chance.uniform(-5000, 5000) if at % 4 == 0 else chance.gauss(0, 2)) for at in range(400)]
    assert of("theil_sen(v, t)", readings) == pytest.approx(3.0, rel=0.05)


NOISE = [random.Random(5).gauss(0, 1) for _ in range(240)]


@pytest.mark.parametrize(
    ("readings", "level"),
    [
        ([50.0] * 60, True),
        ([50.0 + noise for noise in NOISE], True),
        ([float(at) for at in range(60)], False),
        ([0.1 * at + noise for at, noise in enumerate(NOISE)], False),
        ([60.0 - at for at in range(60)], True),  # it falls
        ([100 * (1 - math.exp(-at / 10)) for at in range(60)], True),
        ([0.0] * 20 + [30.0] * 40, True),  # one step
        ([float(at // 10) for at in range(60)], False),  # a stair goes on
        ([float(at) for at in range(11)], None),
    ],
    ids=["flat", "noise", "straight", "straight in noise", "falling", "saturating", "a step", "a stair", "too few"],
)
def test_plateau(readings: list[float], level: bool | None) -> None:
    assert of("plateau(v, t)", readings) is level


@pytest.mark.parametrize(
    ("running", "waiting", "expected"), [("0", "0", 0.4), ("1", "0", None), ("0", "2", None), ("null", "0", None), ("0", "null", None)]
)
def test_at_idle(running: str, waiting: str, expected: float | None) -> None:
    assert of(f"any_value(at_idle(0.4::double, {running}, {waiting}))", [1.0]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS.keys())
def test_two_hundred_courses_are_told_apart(seed: int, record_property: Callable[[str, str], None]) -> None:
    found = drive.judged(seed)
    minutes = {kind: f"{found.median_s[kind] / 60:.0f} min in the median, {found.longest_s[kind] / 60:.0f} at most" for kind in drive.RULES}
    told = f"told after the first loss: KV cache {minutes['kv']}; card {minutes['gpu']}"
    record_property("figures", f"{found.right} of {found.told} right; {told}")
    assert found.told >= 200
    assert found.right >= 0.95 * found.told, (found.false_alarms, found.missed)


def findings(rows: Sequence[Row], name: str, *ticks_s: float) -> dict[float, tuple[Finding, ...]]:
    """What the rule says at each tick; it sees nothing of what comes after."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        tables.setdefault("config_facts" if isinstance(row, ConfigFact) else "engine_samples", []).append(row)
    store = MemoryStore()
    store.append(batch_of(tables))
    with store.cursor() as cursor:
        found = {at: evaluate(cursor, [BOOKS[name]], Scope(to_us=made.T0 + round(at * S)), timeout_s=30.0).findings for at in ticks_s}
    store.close()
    return found


def scrape(at_s: int, *, running: int, waiting: int = 0, kv: float, made_tokens: float) -> EngineSample:
    return EngineSample(
        seen_at=made.T0 + at_s * S, engine="e0", model="m", running=running, waiting=waiting, kv_usage=kv, prompt_tokens_total=made_tokens,
        generation_tokens_total=made_tokens, finished_total=made_tokens // 100, start_at=made.T0 - 3600 * S, src=f"scrape:e0@{at_s}",
    )  # fmt: skip


def test_a_leak_is_told_within_three_minutes_of_the_last_end() -> None:
    """Sixty-three blocks; every tenth of sixty requests keeps four of them."""
    blocks, ended = 63, 240
    idle = [scrape(at, running=0, kv=0.0, made_tokens=0) for at in range(0, 60, 15)]
    work = [scrape(at, running=4, kv=min(1.0, (4 * ((at - 60) // 30) + 9) / blocks), made_tokens=at * 10.0) for at in range(60, ended, 15)]
    after = [scrape(at, running=0, kv=24 / blocks, made_tokens=ended * 10.0) for at in range(ended, ended + 180, 15)]
    told = findings([*idle, *work, *after], OURS[0], *range(30, ended + 180, 5))
    assert next(at for at, found in told.items() if found) - ended <= 75
    (finding,) = told[ended + 175]
    assert finding.since_at == made.T0 + 45 * S
    share_an_hour = 24 / blocks / (ended - 45) * 3600
    assert any(f"grows by {share_an_hour:.1%} of the cache an hour" in line.text for line in finding.evidence)
    assert any(line.text.startswith("suspects") and "24 requests that ended" in line.text for line in finding.evidence)


def test_what_fits_is_said_in_whole_blocks() -> None:
    stuck = [scrape(at, running=0, waiting=3, kv=0.0, made_tokens=900) for at in range(0, 120, 15)]
    settings = {"kv_cache_size_tokens": "52740", "max_model_len": "131072", "block_size": "16"}
    facts = [ConfigFact(seen_at=made.T0, subject="e0", name=name, value=value) for name, value in settings.items()]
    (finding,) = findings([*stuck, *facts], OURS[2], 110)[110]
    assert "--max-model-len 52720 or less" in finding.fix  # 3,296 blocks, one of which is nobody's


@pytest.mark.parametrize("engine", ["vllm-0.32.0", "llamacpp-b10434"])
def test_no_alarm_on_what_healthy_servers_said(engine: str) -> None:
    books = {name: BOOKS[name] for name in OURS}
    texts = sorted(path for path in (CAPTURES / engine).iterdir() if path.suffix in (".txt", ".log"))
    assert texts
    for handed in [[path] for path in texts] + [texts]:
        assert [(one.label, handed) for one in triage(handed, books, {}, Limits()).findings] == []
