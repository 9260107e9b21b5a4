"""Every metric of every vLLM version is known, and what a server lacks is told with the reason."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.dialects import Dialect, MetricKind, load, loads
from lensd_collectors.host.names import Lack, Why, lacking

CAPTURES = Path(__file__).parents[2] / "captures"
VLLM = load()["vllm"]
READ = [line.split() for line in (CAPTURES / "vllm-names" / "names.txt").read_text().splitlines() if not line.startswith("#")]
"""First version read, last version that shows it unasked (- for none), name."""
SCRAPES = {
    name: (CAPTURES / "vllm-0.32.0" / name).read_text() for name in ("metrics-4-after-load.txt", "metrics-6-preempt-after.txt")
}  # the second server ran with --kv-cache-metrics
VERSIONS = ("0.6.6", "0.9.2", "0.10.2", "0.13.0", "0.22.1", "0.33.0")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def inventory(version: str) -> set[str]:
    """What a server of that version shows without any flag, as the sources have it."""
    had = {
        name
        for since, until, name in READ
        if since != "-"
        and numbers(since) <= numbers(version)
        and (until == "-" or numbers(version)[: until.count(".") + 1] <= numbers(until))
    }
    return {name for name in had if VLLM.names[name].flag is None}


def on_the_wire(names: set[str]) -> list[str]:
    """The names of series: a histogram has three."""
    parts = {name: ("_bucket", "_sum", "_count") if VLLM.names[name].kind is MetricKind.HISTOGRAM else ("",) for name in names}
    return [name + part for name, endings in parts.items() for part in endings]


def series_of(text: str) -> set[str]:
    return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in text.splitlines() if line.startswith("vllm:")}


def by_name(lacks: tuple[Lack, ...]) -> dict[str, Why]:
    return {lack.name: lack.why for lack in lacks}


def test_every_name_read_in_the_sources_is_known_and_has_a_place() -> None:
    assert len(READ) > 150
    columns = {selector.name for selectors in VLLM.selectors.values() for selector in selectors}
    for _, _, name in READ:
        assert name in VLLM.names
        assert name in columns or name in VLLM.points or name in VLLM.infos


@pytest.mark.parametrize("name", SCRAPES)
def test_every_family_of_a_real_scrape_is_known_with_its_kind(name: str) -> None:
    families = re.findall(r"^# TYPE (vllm:\S+) (\w+)$", SCRAPES[name], re.MULTILINE)
    kept = {(family, kind) for family, kind in families if not family.endswith("_created")}
    assert len(kept) > 35
    for family, kind in kept:
        known = VLLM.names[family].kind
        assert known == kind or (known is MetricKind.INFO and kind == "gauge")


@pytest.mark.parametrize("column", VLLM.selectors)
def test_every_name_of_a_column_is_among_the_names(column: str) -> None:
    own = {selector.name for selector in VLLM.selectors[column] if selector.name.startswith("vllm:")}
    assert own <= VLLM.names.keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plain_server_lacks_only_what_is_older_newer_or_asked_for(version: str) -> None:
    shown = inventory(version)
    lacks = by_name(lacking(on_the_wire(shown), VLLM, version))
    assert lacks.keys() == VLLM.names.keys() - shown
    for name, why in lacks.items():
        metric = VLLM.names[name]
        if why is Why.TOO_OLD:
            assert metric.since
            assert numbers(metric.since) > numbers(version)
        elif why is Why.GONE:
            assert metric.until
            assert numbers(metric.until) < numbers(version)
        else:
            assert (why, metric.flag is not None) == (Why.FLAG, True)


@pytest.mark.parametrize(
    ("version", "name", "why"),
    [
        ("0.6.6", "vllm:kv_cache_usage_perc", Why.TOO_OLD),
        ("0.6.6", "vllm:gpu_cache_usage_perc", None),
        ("0.9.2", "vllm:kv_cache_usage_perc", None),
        ("0.9.2", "vllm:gpu_cache_usage_perc", None),
        ("0.10.2", "vllm:gpu_cache_usage_perc", Why.GONE),
        ("0.10.2", "vllm:inter_token_latency_seconds", None),
        ("0.13.0", "vllm:num_requests_waiting_by_reason", Why.TOO_OLD),
        ("0.13.0", "vllm:time_per_output_token_seconds", Why.GONE),
        ("0.13.0", "vllm:kv_block_lifetime_seconds", Why.FLAG),
        ("0.22.1", "vllm:num_requests_waiting_by_reason", None),
        ("0.22.1", "vllm:request_num_preemptions", Why.TOO_OLD),
        ("0.33.0", "vllm:num_requests_swapped", Why.GONE),
        ("0.33.0", "vllm:umbp_transfer_failed_total", Why.FLAG),
    ],
)
def test_what_each_version_lacks(version: str, name: str, why: Why | None) -> None:
    assert by_name(lacking(on_the_wire(inventory(version)), VLLM, version)).get(name) is why


def test_a_real_server_lacks_what_its_flags_did_not_bring() -> None:
    plain, flagged = (lacking(series_of(text), VLLM, "0.32.0") for text in SCRAPES.values())
    lifetime = next(lack for lack in plain if lack.name == "vllm:kv_block_lifetime_seconds")
    assert lifetime == Lack("vllm:kv_block_lifetime_seconds", Why.FLAG, "0.13", "--kv-cache-metrics")
    assert "vllm:kv_block_lifetime_seconds" not in by_name(flagged)
    assert Why.STATS_OFF not in by_name(plain).values()
    assert by_name(plain)["vllm:mooncake_xfer_time_seconds"] is Why.TOO_OLD


@pytest.mark.parametrize("version", ["0.32.0", None])
@pytest.mark.parametrize("shown", [[], ["python_info", "process_start_time_seconds"], ["vllm:websocket_connections_active"]])
def test_without_statistics_all_that_should_be_there_says_so(shown: list[str], version: str | None) -> None:
    lacks = by_name(lacking(shown, VLLM, version))
    assert lacks["vllm:num_requests_running"] is lacks["vllm:time_to_first_token_seconds"] is Why.STATS_OFF
    assert lacks["vllm:gpu_cache_usage_perc"] is Why.GONE
    assert lacks["vllm:kv_block_lifetime_seconds"] is Why.FLAG


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_does_not_say_its_version_is_dated_by_what_it_shows(version: str) -> None:
    """Its names are as old as the newest of them; what came after is `too-old`."""
    shown = inventory(version)
    newest = max(numbers(VLLM.names[name].since or "0") for name in shown)
    for name, why in by_name(lacking(on_the_wire(shown), VLLM, None)).items():
        assert (why is Why.TOO_OLD) == (numbers(VLLM.names[name].since or "0") > newest)


@settings(deadline=None, max_examples=50)
@given(st.sets(st.sampled_from(sorted(VLLM.names))), st.sampled_from([*VERSIONS, "0.11.1rc2.dev7+gabc", "v0.18.1", "", "unknown", None]))
def test_every_name_is_either_shown_or_lacking(shown: set[str], version: str | None) -> None:
    lacks = lacking(on_the_wire(shown), VLLM, version)
    assert [lack.name for lack in lacks] == [name for name in VLLM.names if name not in shown]


def test_a_dialect_without_names_lacks_none() -> None:
    assert lacking(["x:y"], load()["kernel"], "1.0") == ()


def test_names_that_are_no_column_become_points() -> None:
    text = (
        'name = "x"\nrole = "engine"\n[metrics]\nrunning = ["x:running"]\n[infos]\n"x:info" = ["a"]\n[points]\nnames = ["y"]\n'
        '[names]\n"x:running" = { kind = "gauge" }\n"x:info" = { kind = "info" }\n"x:more" = { kind = "histogram", since = "1.2" }\n'
    )
    dialect: Dialect = loads(text, "x.toml")
    assert dialect.points == {"x:more", "y"}
    assert list(dialect.names) == ["x:running", "x:info", "x:more"]
