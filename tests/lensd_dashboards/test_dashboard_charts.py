"""Chart specs: what is drawn is what the record says."""

from typing import Any

import canned
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_dashboards import charts

from lensd.records import Diagnosis, Stage, StageState, StageTime

DOCUMENTS = [pytest.param(document, id=document.verdict.label) for document in canned.DIAGNOSES.values()]


def spec_of(document: Diagnosis, ttft_ms: float | None = None) -> dict[str, Any]:
    mark = charts.first_token(document.timeline, ttft_ms)
    spec = charts.waterfall(document.timeline, document.unattributed_ms, document.gaps, document.total_ms, mark).to_dict()
    return dict(spec)


def rows_of(spec: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    """Rows of the layer that is drawn with that mark."""
    (layer,) = [layer for layer in spec.get("layer", [spec]) if layer["mark"]["type"] == mark]
    values: list[dict[str, Any]] = spec["datasets"][layer["data"]["name"]]
    return values


def bars_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return rows_of(spec, "bar")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_bars_are_as_long_as_the_stages_took(document: Diagnosis) -> None:
    drawn: dict[str, float] = {}
    for bar in bars_of(spec_of(document)):
        drawn[bar["row"]] = drawn.get(bar["row"], 0.0) + bar["end_ms"] - bar["start_ms"]
    titles = {"client": "Client", "auth_routing": "Auth & routing"}
    expected = {titles.get(s.stage, s.stage.title()): s.duration_ms for s in document.timeline if s.duration_ms is not None}
    if document.unattributed_ms:
        expected["Unattributed"] = document.unattributed_ms
    assert drawn == pytest.approx(expected)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_all_six_stages_have_a_row_and_the_axis_is_linear_from_zero_to_the_end(document: Diagnosis) -> None:
    spec = spec_of(document)
    rows = [
        *("Client", "Auth & routing", "Queue", "Prefill", "Decode", "Streaming"),
        *(["Unattributed"] if document.unattributed_ms else []),
    ]
    for layer in spec["layer"]:
        if "y" in layer.get("encoding", {}):
            assert layer["encoding"]["y"]["scale"]["domain"] == rows
        if "x" in layer.get("encoding", {}):
            assert layer["encoding"]["x"]["scale"]["domain"] == [0, document.total_ms]
            assert layer["encoding"]["x"]["scale"].get("type", "linear") == "linear"


def test_estimated_stages_are_flagged_in_bar_figure_and_note() -> None:
    document = canned.QUEUED_DOC
    assert {bar["row"]: bar["estimated"] for bar in bars_of(spec_of(document))}["Queue"] is True
    figures = charts.waterfall_figures(document.timeline, document.unattributed_ms, document.total_ms)
    assert figures["Queue"].startswith("≈ ")
    assert not figures["Auth & routing"].startswith("≈")
    notes = charts.notes(document.timeline, document.unattributed_ms, document.gaps, document.clock_skew_ms)
    assert any("estimated" in note and "queue" in note for note in notes)


def test_a_stage_without_a_time_says_why() -> None:
    figures = charts.waterfall_figures(canned.QUEUED_DOC.timeline, canned.QUEUED_DOC.unattributed_ms, canned.QUEUED_DOC.total_ms)
    assert figures["Client"] == "not observed"
    assert figures["Prefill"] == "not reached"


def test_gaps_are_named_by_what_they_lie_between() -> None:
    document = canned.QUEUED_DOC
    notes = charts.notes(document.timeline, document.unattributed_ms, document.gaps, None)
    assert notes[-1] == "Unattributed: 1.5 ms between auth & routing and queue; 9.2 ms between queue and the end."


@pytest.mark.parametrize(
    ("document", "ttft_ms", "at_ms", "text"),
    [
        (canned.HEALTHY_DOC, 155.6, 157.0, "TTFT 156 ms"),  # counts from the gateway, which starts 1.4 ms after the caller
        (canned.HEALTHY_DOC, None, 155.7, "first token in the engine 156 ms"),
        (canned.CRASHED_DOC, 112.9, 112.9, "TTFT 113 ms"),
    ],
)
def test_the_first_token_is_marked(document: Diagnosis, ttft_ms: float | None, at_ms: float, text: str) -> None:
    assert rows_of(spec_of(document, ttft_ms), "rule") == [{"at": pytest.approx(at_ms), "label": text}]


def test_no_mark_before_a_first_token() -> None:
    assert charts.first_token(canned.QUEUED_DOC.timeline, None) is None
    assert not [layer for layer in spec_of(canned.QUEUED_DOC)["layer"] if layer["mark"]["type"] == "rule"]


@given(st.lists(st.integers(0, 60_000_000), min_size=7, max_size=7).filter(any))
def test_shares_add_up_to_the_whole(microseconds: list[int]) -> None:
    *exclusive, unattributed = (value / 1000 for value in microseconds)
    stages = [StageTime(stage=stage, state=StageState.OK, exclusive_ms=length) for stage, length in zip(Stage, exclusive, strict=True)]
    parts = charts.share_parts(stages, unattributed)
    assert sum(float(part["share"]) for part in parts) == pytest.approx(1.0)
    assert sum(float(part["ms"]) for part in parts) == pytest.approx(sum(microseconds) / 1000)
    assert len(parts) == sum(1 for value in microseconds if value)


def test_the_share_bar_is_left_out_where_one_stage_took_nearly_all() -> None:
    assert charts.share_bar(canned.QUEUED_DOC.timeline, canned.QUEUED_DOC.unattributed_ms) is None
    assert charts.share_bar((), None) is None
    chart = charts.share_bar(canned.HEALTHY_DOC.timeline, canned.HEALTHY_DOC.unattributed_ms)
    assert chart is not None
    names = [row["part"] for row in bars_of(chart.to_dict())]
    assert names == ["Client", "Auth & routing", "Queue", "Prefill", "Decode", "Streaming", "Unattributed"]


def test_a_timeline_without_any_time_still_draws() -> None:
    stages = tuple(StageTime(stage=stage, state=StageState.NOT_OBSERVED) for stage in Stage)
    assert bars_of(charts.waterfall(stages, None, (), None).to_dict()) == []
