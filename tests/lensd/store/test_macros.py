"""The macros that runbooks use."""

import pytest

from lensd.store.memory import MemoryStore


def value(sql: str, *parameters: object) -> object:
    store = MemoryStore()
    with store.cursor() as cursor:
        found = cursor.execute(f"SELECT {sql}", list(parameters)).fetchall()[0][0]
    store.close()
    return found


@pytest.mark.parametrize(
    ("attributes", "name", "expected"),
    [
        ('{"gen_ai.request.model": "tiny"}', "gen_ai.request.model", "tiny"),
        ('{"n": 3}', "n", "3"),
        ('{"l": ["stop"]}', "l", '["stop"]'),
        ("{}", "n", None),
        (None, "n", None),
    ],
)
def test_attr(attributes: str | None, name: str, expected: str | None) -> None:
    assert value("attr(?, ?)", attributes, name) == expected


def test_cite() -> None:
    assert value("cite('engine.log:12', 'kv_usage')") == "engine.log:12#kv_usage"
    assert value("cite(null, 'kv_usage')") is None


@pytest.mark.parametrize(
    ("readings", "increase", "rate"),
    [
        ([0.0, 10.0, 20.0], 20.0, 10.0),
        ([5.0, 8.0, 1.0, 3.0], 6.0, 2.0),  # a restart between 8 and 1: 3 + 1 + 2
        ([7.0], None, None),
        ([], None, None),
        ([None, 4.0, None, 9.0], 5.0, 2.5),
        ([3.0, 3.0], 0.0, 0.0),
    ],
)
def test_counters(readings: list[float | None], increase: float | None, rate: float | None) -> None:
    readings_sql = "FROM (SELECT unnest(?::DOUBLE[]) v, unnest(range(len(?::DOUBLE[]))) s)"
    assert value(f"increase(v, make_timestamp(s * 1000000)) {readings_sql}", readings, readings) == increase
    assert value(f"rate(v, make_timestamp(s * 1000000)) {readings_sql}", readings, readings) == rate
