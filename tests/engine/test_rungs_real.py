"""One real engine as lensd sees it from each rung, without our gateway: the stages, requests, ids and causes that docs/coverage.md says."""

import functools
import re
import statistics

import msgspec
import pytest
from checkout import ROOT
from plugged import MIDDLEWARE as WITH_MIDDLEWARE
from plugged import plugged
from recorded import LOG, MIDDLEWARE, PLUGIN, PROCESS, SCRAPE, SPANS, Lensd, Recorder, lensd, only, triage
from rungs_story import CRASH, KEY, NAME, OPTIONS, QUEUE, SLOTS, STALL, THRASH, Story

from lensd import rungs

pytestmark = pytest.mark.engine

ADDS = {"0": SCRAPE, "1": LOG, "2": SPANS, "3a": PLUGIN, "3b": MIDDLEWARE}
STAGES = ("client", "auth_routing", "queue", "prefill", "decode", "streaming")
PARAMS = {"engine-silent-stall@window": {"still_for": "15s", "warm_up": "20s"}}  # else a minute, two after a start


@pytest.fixture(scope="module")
def story(engine_starter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rungs")
    scraped, told = Recorder(), Recorder()
    environment = plugged(
        folder / "installed", told.url, LENSD_ENGINE=NAME, OTEL_RESOURCE_ATTRIBUTES=f"lensd.engine={NAME}"
    )  # fmt: skip
    options = (*OPTIONS, *WITH_MIDDLEWARE, "--otlp-traces-endpoint", f"{told.url}/v1/traces")
    engine = engine_starter.start("rungs", options=options, environment=environment, api_key=KEY, max_num_seqs=SLOTS)
    try:
        engine.wait_ready()
        yield Story(engine, scraped, told, folder).run()
    finally:
        engine.stop()
        scraped.stop()
        told.stop()


@pytest.fixture(scope="module")
def at(story, tmp_path_factory):
    """lensd with a rung and those below it, having lived through it all; the engine is on another host, so nobody watches its processes."""

    @functools.cache
    def make(key, *more):
        kinds = {ADDS[each.key] for each in rungs.below(key)} | set(more)
        bodies = story.scraped if kinds <= {SCRAPE, PROCESS} else story.told
        every_s = 2.0 if key in ("0", "1") and not more else 10.0  # what stands for long is seen at any interval
        return Lensd(tmp_path_factory.mktemp(f"rung-{key}"), PARAMS).hear(only(bodies, kinds), every_s=every_s)

    return make


@pytest.fixture(scope="module")
def asked(at):
    """`lensd diagnose ID` on the store of a rung."""

    def ask(key, ident, *arguments):
        return lensd(at(key).close().folder, "diagnose", ident, *arguments)  # closing twice is no error

    return ask


def page():
    """rung -> stage -> source, as the coverage page has it."""
    table = (ROOT / "docs" / "coverage.md").read_text().partition("## Stages")[2].partition("\n\n- ")[0]
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    names = [name.replace("/", "_") for name in head]
    return {row[0]: {name: None if cell == "-" else cell for name, cell in zip(names[2:], row[2:], strict=True)} for row in rows}


def named(house, label):
    return [row for row in house.findings() if row["label"] == label]


def called(found, ident):
    """The name it has there: below the middleware vLLM's own is all there is."""
    return next(name for name in (ident, f"chatcmpl-{ident}") if name in found)


# What looks into a rung's store comes first, what lets the command line read it last.


@pytest.mark.parametrize("key", ["0", "1", "2", "3a", "3b"])
def test_the_stages_are_those_that_the_page_says(at, key):
    told, found = page()[key], at(key).requests()
    if key in ("0", "1"):
        assert (set(told.values()), found) == ({None}, {})
        return
    frontend = told.pop("front end")
    for ident in (f"{kind}-{number}" for kind in ("streamed", "whole") for number in range(3)):
        row = found[called(found, ident)]
        assert {stage: row[f"{stage}_source"] for stage in STAGES} == told, ident
        assert (row["frontend_ms"] is not None) == (frontend is not None), ident
        exclusive = sum(row[f"{stage}_exclusive_ms"] or 0.0 for stage in STAGES)
        assert exclusive + row["unattributed_ms"] == pytest.approx(row["total_ms"], abs=0.002), ident
        assert (row["preemptions"] is not None, row["cached_tokens"] is not None) == (key[0] == "3",) * 2, ident


def test_front_end_is_taken_from_whom_the_page_says(at, story):
    spans, inside = at("2").requests(), at("3b").requests()
    assert [page()[key]["front end"] for key in ("2", "3a", "3b")] == ["llm_request", "llm_request", "middleware"]
    off = []
    for ident in (f"streamed-{number}" for number in range(3)):
        own, both = spans[f"chatcmpl-{ident}"], inside[ident]
        [(attributes, arrived)] = [
            (msgspec.json.decode(row["attributes"]), row["started_at"])
            for row in at("2").rows(f"select attributes, started_at from spans where request_id = 'chatcmpl-{ident}'")
        ]
        first, queue, prefill = (
            1000 * attributes[f"gen_ai.latency.time_{name}"] for name in ("to_first_token", "in_queue", "in_model_prefill")
        )
        assert own["frontend_ms"] == pytest.approx(first - queue - prefill, abs=0.01)
        assert own["started_at"] == arrived > both["started_at"]  # the middleware has it before vLLM calls it arrived
        token_ms = both["prefill_ms"] + both["queue_ms"]  # from the middleware's first line to the first token
        arrived_ms = 1000 * (arrived - both["started_at"]).total_seconds()
        # text may come some tokens later; 5 ms: the engine's arrival is by the wall clock, all else is not
        assert arrived_ms + first - 5.0 <= token_ms <= both["ttft_ms"] + 5.0
        off.append(abs(token_ms - story.first_ms[ident]))
    assert statistics.median(off) < 30.0  # by the caller's own clock, which has to get its turn among the engine's processes


def test_which_requests_are_there(at, story):
    killed, alive = set(story.killed), {*story.served, *story.refused, *story.left}
    for key in ("2", "3a"):
        assert set(at(key).requests()) == {f"chatcmpl-{ident}" for ident in story.served}, key
    inside = at("3b").requests()
    assert set(inside) - killed == alive
    for ident, decision in story.refused.items():
        row = inside[ident]
        said = (row["outcome"], row["decision"], row["said_by"], row["auth_routing_source"])
        assert said == ("refused", decision, "engine", "middleware"), ident
        assert {row[f"{stage}_ms"] for stage in ("queue", "prefill", "decode")} == {None}
    for ident, stage in (("left-in-queue", "queue"), ("left-in-decode", "decode")):
        row = inside[ident]
        assert (row["outcome"], row["said_by"], row[f"{stage}_state"]) == ("caller_gone", "client", "failed"), ident
        assert row[f"{stage}_source"] in ("scrape", "estimate", "middleware"), ident
    assert {row["label"] for ident, row in inside.items() if ident in story.refused} == {
        "auth-wrong-key", "route-wrong-model-name", "context-length-server-limit-low",
    }  # fmt: skip


@pytest.mark.parametrize("key", ["0", "1"])
def test_without_ids_each_fault_is_named_in_its_time_and_nothing_else(at, story, key):
    house = at(key)
    assert {row["label"] for row in house.findings()} == set(story.when) == {QUEUE, THRASH, STALL, CRASH}
    for label, (begun, ended) in story.when.items():
        rows = named(house, label)
        assert {row["engine"] for row in rows} == {NAME}, label
        since = [each["at"] for each in house.rows(f"select distinct epoch_us(since_at) as at from findings where label = '{label}'")]
        first = (min(since) - begun) / 1e6  # with a log beside the scrapes a later tick may know of an earlier beginning
        print(f"rung {key}: {label} since {first:.1f} s after it began, {rows[0]['confidence']}")
        assert begun - 1_500_000 <= min(since) <= max(since) <= ended, label
        sure = {row["confidence"] for row in rows}
        if label == CRASH:  # its log says nothing of a stop, and a scrape nothing at all
            assert sure == {"likely" if key == "1" else "possible"}
        else:
            assert sure <= {"likely", "certain"}, label
    slots = {"max_num_seqs" in row["evidence"] for row in named(house, QUEUE)}  # at one tick or another
    assert (True in slots) == (key == "1")
    assert not house.rows("select * from findings where request_key is not null")


def test_the_same_with_its_processes_watched(at, story):
    """As on the engine's own host: that the process is seen to end takes nothing away."""
    rows = named(at("0", PROCESS), CRASH)
    assert {row["confidence"] for row in rows} == {"possible"}
    texts = {line["text"] for row in rows for line in msgspec.json.decode(row["evidence"])}
    assert "the engine's process ended, and nobody had asked it to" in texts
    assert "2 requests ran and 0 waited when it last answered, 1 s before" in texts
    assert {row["confidence"] for row in named(at("1", PROCESS), CRASH)} == {"certain"}  # its log says nothing of a stop


@pytest.mark.parametrize("key", ["0", "1"])
def test_without_ids_nobody_says_that_there_was_no_such_request(asked, key):
    done = asked(key, "chatcmpl-streamed-1")
    assert (done.returncode, done.stdout) == (5, "")
    line = rungs.line("2", engine=NAME)
    assert "no source here records request ids" in done.stderr
    wanted = re.sub(r"\$\(cat [^)]*\)", "TOKEN", line)
    assert wanted in re.sub(r"\$\(cat [^)]*\)", "TOKEN", done.stderr)


def test_with_vllms_spans_a_request_is_diagnosed_by_vllms_id(at, asked, story):
    waited = max((row for row in at("2").requests().values() if "queued" in row["request_id"]), key=lambda row: row["queue_ms"])
    trace = waited["trace_id"]
    ident = waited["request_id"].removeprefix("chatcmpl-")
    for name in (f"chatcmpl-{ident}", ident, trace):
        done = asked("2", name, "--json")
        assert done.returncode in (0, 3), done.stderr
        said = msgspec.json.decode(done.stdout)
        assert (said["verdict"]["label"], said["verdict"]["stage"], said["subject"]["trace_id"]) == (QUEUE, "queue", trace), name
    assert asked("2", "chatcmpl-nobody").returncode == 4


def test_with_the_middleware_refused_and_left_ones_are_diagnosed_too(asked, story):
    for ident, label in (("refused-key", "auth-wrong-key"), ("chatcmpl-streamed-0", "no-incident"), ("streamed-0", "no-incident")):
        done = asked("3b", ident, "--json")
        assert msgspec.json.decode(done.stdout)["verdict"]["label"] == label, ident
    left = msgspec.json.decode(asked("3b", "left-in-queue", "--json").stdout)
    assert (left["subject"]["outcome"], left["verdict"]["stage"]) == ("caller_gone", "queue")


def test_what_stood_is_named_from_its_bundles_too(at, tmp_path):
    """Found anew in their rows, not as the incident has it. The queue stood for less time than it is held back before it is an incident."""
    folder, labels = at("1").close().folder, {}
    given = {name: "".join(f'{key} = "{value}"\n' for key, value in values.items()) for name, values in PARAMS.items()}
    (folder / "lensd.toml").write_text("".join(f'[runbooks."{name}"]\n{text}' for name, text in given.items()))
    for each in msgspec.json.decode(lensd(folder, "incidents", "ls", "--json").stdout)["items"]:
        packed = tmp_path / f"{each['incident_id']}.zip"
        made = lensd(folder, "bundle", each["incident_id"], "-o", str(packed))
        assert (made.returncode, made.stderr) == (0, "")
        said = triage(packed)
        assert said["ruled_out"] or said["not_evaluated"], each
        labels[each["label"]] = said["verdict"]["label"]
    assert labels == {label: label for label in (THRASH, STALL, CRASH)}
