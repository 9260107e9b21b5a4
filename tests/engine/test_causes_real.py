"""Causes brought about in real engines: named live, and by triage from the bundle that was made of them.

Five minutes of load on three engines, so run by `make test-causes` alone.
"""

import os
import time

import causes_story
import msgspec
import pytest
from house import House
from recorded import triage

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("LENSD_REAL_CAUSES"), reason="five minutes of load: run `make test-causes`"),
]

MIXED, UNFIT, BROKEN = "mixed", "unfit", "broken"


class Seen:
    """`verdicts`: of the requests that were asked about; `incidents`: labels by engine; `bundled`: what triage said of each bundle."""

    def __init__(self) -> None:
        self.verdicts: dict[str, dict] = {}
        self.incidents: set[tuple[str, str]] = set()
        self.bundled: dict[str, str] = {}


@pytest.fixture(scope="module")
def seen(engine_starter, engine_otlp_port, engine_token, tmp_path_factory):
    folder = tmp_path_factory.mktemp("causes")
    engines = {}
    environment = {name: {"OTEL_RESOURCE_ATTRIBUTES": f"lensd.engine={name}"} for name in (MIXED, UNFIT, BROKEN)}
    try:
        engines[MIXED] = engine_starter.start(
            "causes-mixed", model_dir="model-32k", max_model_len=causes_story.CONTEXT, environment=environment[MIXED],
            options=("--max-num-batched-tokens", str(causes_story.CONTEXT), "--no-enable-prefix-caching"),
        )  # fmt: skip
        engines[UNFIT] = engine_starter.start(
            "causes-unfit", options=("--num-gpu-blocks-override", str(causes_story.UNFIT_BLOCKS)),
            environment={**environment[UNFIT], **causes_story.unfit(folder / "installed")},
        )  # fmt: skip
        for engine in engines.values():
            engine.wait_ready()
        engines[BROKEN] = engine_starter.start("causes-broken", options=("--quantization", "awq"), environment=environment[BROKEN])
        beside = {UNFIT: engines[UNFIT], BROKEN: engines[BROKEN]}
        yield _lived_through(House(folder, engines[MIXED], engine_otlp_port, engine_token, MIXED, beside))
    finally:
        for engine in engines.values():
            engine.stop()


def _lived_through(house):
    seen = Seen()

    def look(ident):
        seen.verdicts[ident] = house.verdict(ident)
        seen.bundled[ident] = _from_bundle(house, ident)

    house.start("serve", "gateway", "agent")
    try:
        time.sleep(3)
        with causes_story.never_fits(house.beside[UNFIT]):
            begun = time.monotonic()
            causes_story.unbounded(house, look)
            causes_story.interfere(house, 45.0, look)
            # two minutes after its start, one that it stands, half a one that an incident is held back
            time.sleep(max(0.0, 205.0 - (time.monotonic() - begun)))
            incidents = _incidents(house)
        seen.incidents = {(each["label"], each["engine"]) for each in incidents}
        for each in incidents:
            if each["engine"] in (UNFIT, BROKEN):
                seen.bundled[each["engine"]] = _from_bundle(house, each["incident_id"])
    finally:
        house.supervisor.stop()
    return seen


def _incidents(house):
    done = house.lensd("incidents", "ls", "--json")
    assert done.returncode == 0, done.stderr + house.output.getvalue()
    return msgspec.json.decode(done.stdout)["items"]


def _from_bundle(house, ident):
    """The label that triage gives to the bundle of a request or incident."""
    packed = house.folder / f"{ident}.zip"
    made = house.lensd("bundle", ident, "-o", str(packed))
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    return triage(packed)["verdict"]["label"]


def test_prefills_that_hold_up_running_answers_are_named(seen):
    found = seen.verdicts["interfered-0"]["verdict"]
    assert (found["label"], found["stage"]) == ("prefill-decode-interference", "prefill")
    assert seen.bundled["interfered-0"] == found["label"]


def test_an_answer_that_only_the_context_ended_is_named(seen):
    found = seen.verdicts["unbounded-0"]["verdict"]
    assert (found["label"], found["stage"]) == ("unbounded-generation", "decode")
    assert seen.bundled["unbounded-0"] == found["label"]


def test_a_request_that_can_never_be_admitted_is_an_incident_of_its_engine(seen):
    assert ("scheduler-deadlock-never-fits", UNFIT) in seen.incidents
    assert seen.bundled[UNFIT] == "scheduler-deadlock-never-fits"


def test_a_start_that_failed_is_an_incident_of_its_engine(seen):
    assert ("engine-start-failed", BROKEN) in seen.incidents
    assert seen.bundled[BROKEN] == "engine-start-failed"


def test_nothing_else_is_said_of_them(seen):
    assert seen.incidents <= {
        ("scheduler-deadlock-never-fits", UNFIT), ("engine-start-failed", BROKEN), ("prefill-decode-interference", MIXED),
        ("unbounded-generation", MIXED),
    }  # fmt: skip
