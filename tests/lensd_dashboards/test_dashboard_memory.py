"""The memory page: bands that add up, the limit, changes, and what is not known said as such."""

from collections.abc import Callable
from typing import Any

import canned_memory
import msgspec
import pytest
from fake_api import FakeApi
from lensd_dashboards import charts, memory_charts
from lensd_dashboards.memory_charts import Span
from page_text import text_of
from streamlit.testing.v1 import AppTest

from lensd.api.items import MemoryCard, MemoryMark
from lensd.errors import NoAnswerError
from lensd.memory.composition import Band

Open = Callable[..., AppTest]
GIB = canned_memory.GIB
NOON = 1_796_040_000_000.0  # 2026-11-30 12:00:00 UTC in milliseconds
SPAN = Span(NOON - 600_000, NOON + 300_000, canned_memory.STEP_S * 1000)
CARDS = {card["gpu"]: msgspec.convert(card, MemoryCard) for card in canned_memory.MEMORY["items"]}
MARKS = [msgspec.convert(mark, MemoryMark) for mark in canned_memory.MARKS]


def test_every_band_has_a_title_and_a_colour() -> None:
    assert set(memory_charts.TITLES) == set(memory_charts._COLOURS) == set(Band)


def test_bands_lie_upon_each_other_and_reach_the_cards_size() -> None:
    rows = memory_charts.bands(CARDS["0"], SPAN)
    first = [row for row in rows if row["at"] == NOON]
    assert [(row["band"], row["low"], row["high"]) for row in first] == [
        ("Weights", 0, 15), ("KV cache, used", 15, 25), ("KV cache, free or reusable", 25, 65), ("Activations, graphs, runtime", 65, 71),
        ("Unexplained", 71, 73), ("Other processes", 73, 74), ("Driver", 74, 75), ("Free", 75, 80),
    ]  # fmt: skip


def test_a_time_without_samples_parts_the_bands_and_is_shown() -> None:
    rows = memory_charts.bands(CARDS["0"], SPAN)
    weights = {str(row["whose"]): [r["at"] for r in rows if r["whose"] == row["whose"]] for row in rows if row["band"] == "Weights"}
    assert [(min(at), max(at)) for at in weights.values()] == [(NOON, NOON + 60_000), (NOON + 100_000, NOON + 180_000)]
    assert memory_charts.gaps(CARDS["0"], SPAN) == [{"at": NOON + 60_000, "until": NOON + 100_000}]


def test_what_is_not_known_takes_no_room_and_is_named() -> None:
    rows = memory_charts.bands(CARDS["1"], SPAN)
    assert {row["band"] for row in rows} == {"Not known", "Free"}
    assert memory_charts.unknown(CARDS["1"].points[-1]) == [
        "Weights of e1", "KV cache of e1", "Activations, graphs, runtime of e1", "Other processes", "Driver",
    ]  # fmt: skip
    assert memory_charts.limits(CARDS["1"], SPAN) == []


def test_the_limit_follows_its_changes() -> None:
    told = memory_charts.limits(CARDS["0"], SPAN)
    assert [row["limit"] for row in told if row["at"] in (NOON, NOON + 110_000, NOON + 120_000)] == [72.0, 72.0, 76.0]


@pytest.mark.parametrize("palette", [charts.LIGHT, charts.DARK])
def test_the_chart_has_a_layer_for_each_thing(palette: charts.Palette) -> None:
    spec: dict[str, Any] = memory_charts.chart(CARDS["0"], MARKS, SPAN, palette).to_dict()
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rect", "area", "line", "rule", "text"]
    area = spec["layer"][1]
    assert area["encoding"]["y"]["scale"]["domain"] == [0, 80]
    assert area["encoding"]["x"]["scale"]["domain"] == [SPAN.since_ms, SPAN.until_ms]
    bare = memory_charts.chart(CARDS[None], [], SPAN, palette).to_dict()
    assert [layer["mark"]["type"] for layer in bare["layer"]] == ["rect", "area"]
    assert bare["layer"][1]["encoding"]["y"]["scale"]["domain"] == [0, 5]


def test_a_mark_outside_the_span_is_not_drawn() -> None:
    assert [row["kind"] for row in memory_charts.mark_rows(MARKS, SPAN)] == ["Start", "Configuration"]
    assert memory_charts.mark_rows(MARKS, Span(NOON, NOON + 110_000, 10_000))[-1]["kind"] == "Start"


def test_the_page_shows_each_card_with_its_figures(open_page: Open) -> None:
    app = open_page("memory")
    assert not app.exception
    said = text_of(app)
    for wanted in (
        "GPU 0 of gpu-host-1", "74.00 GiB", "80.00 GiB", "76.00 GiB", "sw thermal, sw power cap", "84 °C", "93.0 %", "Engine e2",
        "max_model_len 4096 -> 32768", "does not fit", "started, version 0.32.0",
    ):  # fmt: skip
        assert wanted in said, wanted
    assert len(app.get("vega_lite_chart")) == 3
    assert "None" not in said


def test_the_page_says_what_is_not_known(open_page: Open) -> None:
    said = text_of(open_page("memory"))
    for wanted in (
        "Not known at the end: Weights of e1, KV cache of e1",
        "That e1 runs here is assumed",
        "Nobody watches the card that this engine runs on",
        "GPU 2 of gpu-host-1: no sample in this time; last sample 2026-11-30 11:02:00 UTC, state lost (GPU is lost)",
    ):
        assert wanted in said, wanted


def test_the_page_of_one_engine(open_page: Open, api: FakeApi) -> None:
    said = text_of(open_page("memory", engine="e2"))
    assert "Engine e2" in said
    assert "GPU 0 of" not in said
    assert "GPU 2 of" not in said
    assert any("engine=e2" in path for path in api.asked)


def test_parts_that_hold_more_than_is_used_are_told(open_page: Open, api: FakeApi) -> None:
    points = [point | {"over_bytes": 3 * GIB} for point in canned_memory.SERVING["points"]]
    api.memory = api.memory | {"items": [canned_memory.SERVING | {"points": points}]}
    assert "3.00 GiB more than the card says is used" in text_of(open_page("memory"))


def test_with_nothing_seen_the_page_says_what_would_show_it(open_page: Open, api: FakeApi) -> None:
    api.memory, api.gpus = {"items": [], "marks": [], "step_s": 10.0}, []
    said = text_of(open_page("memory"))
    assert "No card and no engine was seen in this time" in said
    assert "lensd agent" in said
    assert "Nothing was told of the memory of e9" in text_of(open_page("memory", engine="e9"))


def test_a_daemon_that_is_gone_is_one_line(open_page: Open, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise NoAnswerError("no answer")

    monkeypatch.setattr("lensd_dashboards.data.memory", gone)
    assert "No answer from lensd" in text_of(open_page("memory"))
