"""The rungs say of themselves what is so: columns that exist, labels whose evidence is there, lines with no secret."""

import shlex
from itertools import pairwise

import pytest
from checkout import ROOT, load_by_path
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors import conventions
from lensd_collectors.conventions import Stage
from lensd_collectors.rows import TABLES, RequestRow

from lensd import rungs
from lensd.config import load as load_config
from lensd.diagnosis.runbook import load

docs = load_by_path("tools_docs", ROOT / "tools" / "docs.py")
BOOKS = load(())
NEEDS = {book.id: rungs.Claim(book.needs, book.needs_any, book.live, book.rung, book.rung_because) for book in BOOKS.values()}
LEAST_LIVE = 42  # labels
KEYS = [rung.key for rung in rungs.RUNGS]


def given_at(key):
    return {column for rung in rungs.below(key) for column in rung.gives}


def as_given(columns):
    return {name.replace("requests.", "subjects.") for name in columns}


def test_every_column_that_a_rung_gives_exists():
    for rung in (*rungs.RUNGS, *rungs.BESIDE):
        for name in rung.gives:
            table, column = name.split(".")
            struct = RequestRow if table == "subjects" else TABLES[table]
            assert column in struct.__struct_fields__, name


def test_stages_are_the_six_and_the_front_end():
    known = {str(stage) for stage in Stage} | {"frontend"}
    assert {stage for rung in rungs.RUNGS for stage in rung.stages} <= known


@pytest.mark.parametrize("key", KEYS)
def test_a_label_is_claimed_only_where_all_that_its_rule_needs_is_given(key):
    for name in rungs.claimed(rungs.below(key), NEEDS):
        book = BOOKS[name]
        assert as_given(book.needs) <= given_at(key), name
        assert not book.needs_any or any(as_given(group) <= given_at(key) for group in book.needs_any), name
        assert book.live
        assert book.rung is None or book.rung in KEYS[: KEYS.index(key) + 1]


@pytest.mark.parametrize("beside", [(), (rungs.HOST,), (rungs.CLIENT,)], ids=["anywhere", "host", "client"])
def test_what_is_claimed_at_some_rung_is_claimed_at_all_above(beside):
    claims = [set(rungs.claimed((*rungs.below(key), *beside), NEEDS)) for key in KEYS]
    assert all(lower <= higher for lower, higher in pairwise(claims))


@pytest.mark.parametrize("book", [book for book in BOOKS.values() if book.status == "stable"], ids=lambda book: book.id)
def test_what_a_rule_needs_has_a_live_writer_or_the_rule_says_that_files_alone_tell_it(book):
    orphans = [name for name in book.needs if not rungs.writers(name)]
    choices = [[name for name in group if not rungs.writers(name)] for group in book.needs_any]
    told = not orphans and (not choices or [] in choices)
    assert told or not book.live, f"nobody writes {orphans or choices} live: say live: false"
    assert (rungs.first(book.id, NEEDS) is not None) == book.live


def test_most_labels_are_told_live():
    live = {BOOKS[name].label for name in rungs.claimed((*rungs.RUNGS, *rungs.BESIDE), NEEDS) if BOOKS[name].status == "stable"}
    assert len(live) >= LEAST_LIVE, sorted(live)


def test_the_agent_on_the_host_gives_what_it_samples_of_gpus_and_no_ladder_does():
    sent = {*conventions.GPU_METRICS.values(), "gpu", "mig", "pid", "pid_engine", "process", "rss_bytes"}
    assert set(rungs.HOST.gives) == {f"gpu_samples.{column}" for column in sent}
    assert not {name for name in given_at("5") if name.startswith("gpu_samples.")}


def test_the_first_rung_is_without_the_host_where_that_is_enough():
    needs = {
        "load": rungs.Claim(["engine_samples.running"]), "card": rungs.Claim(["gpu_samples.util", "subjects.queue_ms"]),
        "either": rungs.Claim([], [["gpu_samples.ecc"], ["events.line"]]), "none": rungs.Claim(["requests.nothing"]),
        "files": rungs.Claim(["engine_samples.running"], live=False), "later": rungs.Claim(["engine_samples.running"], rung="3b"),
        "killed": rungs.Claim(["events.name"], rung="host"),
    }  # fmt: skip
    assert [rungs.first(name, needs) for name in needs] == [
        ("0", ()), ("2", ("host",)), ("1", ()), None, None, ("3b", ()), ("0", ("host",)),
    ]  # fmt: skip
    assert rungs.first_in_words("caller", {"caller": rungs.Claim(["subjects.client_ms", "gpu_samples.util"])}) == "0 and host and client"


@pytest.mark.parametrize("book", [book for book in BOOKS.values() if book.rung is not None], ids=lambda book: book.id)
def test_what_is_withheld_would_have_its_needs_met_before(book):
    groups = book.needs_any or [()]
    met = [key for key in KEYS if any(as_given([*book.needs, *group]) <= given_at(key) for group in groups)]
    before = KEYS if book.rung == rungs.HOST.key else KEYS[: KEYS.index(book.rung)]
    assert met, f"{book.id} is claimed with the host alone: it needs no rung"
    assert met[0] in before, f"{book.id} is withheld for nothing"


def test_without_requests_no_rule_about_one_is_claimed():
    for key in ("0", "1"):
        assert [name for name in rungs.claimed(rungs.below(key), NEEDS) if BOOKS[name].scope == "request"] == []


def test_the_page_says_what_the_rules_need():
    read = docs.runbook_needs(ROOT, rungs)

    def plain(claims):
        return {
            name: claim._replace(needs=tuple(claim.needs), needs_any=tuple(map(tuple, claim.needs_any))) for name, claim in claims.items()
        }

    assert plain(read) == plain(NEEDS)
    page = (ROOT / "docs" / "coverage.md").read_text()
    for name in NEEDS:
        assert f"| [{name}](../runbooks/{name}.md) | {rungs.first_in_words(name, NEEDS) or '-'} |" in page
    for name in {need for claim in NEEDS.values() for need in claim.needs}:
        assert f"| `{name}` | {', '.join(rung.key for rung in rungs.writers(name)) or '-'} |" in page


def test_the_page_has_each_rung_with_its_sources():
    page = (ROOT / "docs" / "coverage.md").read_text()
    assert "| 2 | vLLM's own spans | - | - | `llm_request` | `llm_request` | `llm_request` | `llm_request` | - |" in page
    assert "| 0 | scrape of /metrics | - | - | - | - | - | - | - |" in page
    for rung in rungs.RUNGS:
        assert rungs.line(rung.key, url="http://127.0.0.1:8000") in page


def test_middleware_alone_leaves_the_engines_stages_to_estimates():
    found = rungs.stages([rungs.rung("0"), rungs.rung("3b")])
    assert found == {"streaming": "middleware", "queue": "estimate", "prefill": "estimate", "decode": "estimate"}


@pytest.mark.parametrize(("key", "around"), [("1", 'agent.engines = [{{ url = "u", {} }}]'), ("4", "[agent]\n{}"), ("5", "[gateway]\n{}")])
def test_a_line_for_lensd_toml_is_one_that_it_takes(key, around, tmp_path):
    text = around.format(rungs.line(key, engine='the "one" \\', url="http://127.0.0.1:8000"))
    (tmp_path / "lensd.toml").write_text(text)
    loaded = load_config(str(tmp_path / "lensd.toml"), {})
    assert loaded.agent.engines or loaded.agent.access_logs or loaded.gateway.upstreams[0].name == 'the "one" \\'


names = st.text(min_size=1, max_size=30).filter(lambda name: "\0" not in name)


@given(engine=names, folder=names, key=st.sampled_from(["3a", "3b"]))
def test_a_shell_reads_the_names_as_they_are(engine, folder, key):
    words = shlex.split(rungs.line(key, engine=engine, token_file=f"/{folder}/token"), comments=False)
    assert f"LENSD_ENGINE={engine}" in words
    assert f"LENSD_TOKEN_FILE=/{folder}/token" in words


@given(engine=names)
def test_a_resource_attribute_has_no_character_of_its_own_syntax(engine):
    line = rungs.line("2", engine=engine)
    value = line.partition("OTEL_RESOURCE_ATTRIBUTES=lensd.engine=")[2].partition(" ")[0]
    assert value
    assert set(value) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~:%")
