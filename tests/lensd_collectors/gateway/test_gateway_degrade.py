"""The degrade switch: when it moves, what it then does to a request, and what the engines say of themselves."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lensd_collectors.gateway.config import Act, Degrade
from lensd_collectors.gateway.degrade import UNKNOWN, Degraded, Heard, Signals, Switches, joined, read_signals, signals_in

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
S = 1_000_000_000
CONFIG = Degrade(enabled=True, in_flight=10, waiting=5, kv_usage=0.9, leave_at=0.8, enter_after_s=2, leave_after_s=10)


class Told:
    """Switches, and what they report with the second at which they did."""

    def __init__(self, config):
        self.now, self.acts = 0, []
        self.switches = Switches(config, self._told)

    def _told(self, moved):
        self.acts.append((self.now / S, moved.act, moved.text))

    def tick(self, second, in_flight=0, waiting=None, kv_usage=None, model="m"):
        self.now = int(second * S)
        self.switches.tick(self.now, model, in_flight, waiting, kv_usage)

    @property
    def moves(self):
        return [(second, act) for second, act, _ in self.acts]


OVER, BETWEEN, BACK = 11, 9, 8


@pytest.mark.parametrize(
    ("ticks", "moves"),
    [
        pytest.param([(0, OVER), (1.9, OVER)], [], id="not over for long enough"),
        pytest.param([(0, OVER), (2, OVER)], [(2, "degrade_on")], id="over for long enough"),
        pytest.param([(0, OVER), (1, 10), (2, OVER), (3.9, OVER)], [], id="at the threshold is not over it, and begins anew"),
        pytest.param([(0, OVER), (2, OVER), (3, BACK), (12.9, BACK)], [(2, "degrade_on")], id="not back for long enough"),
        pytest.param([(0, OVER), (2, OVER), (3, BACK), (13, BACK)], [(2, "degrade_on"), (13, "degrade_off")], id="back for long enough"),
        pytest.param([(0, OVER), (2, OVER), (3, BACK), (8, BETWEEN), (9, BACK), (18, BACK)], [(2, "degrade_on")], id="between holds it on"),
        pytest.param([(0, BETWEEN), (60, BETWEEN)], [], id="between does not begin it"),
        pytest.param(
            [(0, OVER), (2, OVER), (3, BACK), (13, BACK), (14, OVER), (16, OVER)],
            [(2, "degrade_on"), (13, "degrade_off"), (16, "degrade_on")],
            id="on again",
        ),
    ],
)
def test_it_moves_when_what_speaks_for_it_has_lasted(ticks, moves):
    told = Told(CONFIG)
    for second, in_flight in ticks:
        told.tick(second, in_flight, 0, 0.0)
    assert told.moves == moves


@pytest.mark.parametrize("signals", [(11, 0, 0.0), (0, 6, 0.0), (0, 0, 0.95), (11, None, None), (0, 6, None), (0, None, 0.95)])
def test_any_signal_over_its_threshold_begins_it_and_all_must_be_back_to_end_it(signals):
    told = Told(CONFIG)
    told.tick(0, *signals)
    told.tick(2, *signals)
    assert told.moves == [(2, "degrade_on")]
    told.tick(3, *signals)
    told.tick(40, *signals)
    assert told.moves == [(2, "degrade_on")]
    told.tick(41, 8, 4, 0.72)
    told.tick(51, 8, 4, 0.72)
    assert told.moves == [(2, "degrade_on"), (51, "degrade_off")]


def test_one_signal_may_take_over_from_another():
    told = Told(CONFIG)
    told.tick(0, 11, 0, 0.0)
    told.tick(1, 0, 6, 0.0)
    told.tick(2, 0, 0, 0.95)
    assert told.moves == [(2, "degrade_on")]


def test_a_signal_that_is_lost_leads_neither_to_on_nor_holds_on_for_ever():
    told = Told(CONFIG)
    told.tick(0, 0, 6, 0.0)
    told.tick(1.5, 0, None, None)  # lost on the way: it begins anew
    told.tick(3, 0, 6, 0.0)
    assert told.moves == []
    told.tick(5, 0, 6, 0.0)
    told.tick(6, 0, None, None)
    told.tick(15, 9, None, None)  # the signal that is known is not back
    told.tick(16, 0, None, None)
    told.tick(26, 0, None, None)
    assert told.moves == [(5, "degrade_on"), (26, "degrade_off")]


def test_the_acts_say_which_signals_did_it():
    told = Told(CONFIG)
    for second, signals in [(0, (3, 7, 0.95)), (2, (3, 7, 0.95)), (3, (3, 0, None)), (13, (2, 1, None))]:
        told.tick(second, *signals)
    on, off = (text for _, _, text in told.acts)
    assert on == "load shedding (refuse) begins for m: waiting 7 (threshold 5), kv_usage 0.95 (threshold 0.9)"
    assert off == (
        "load shedding (refuse) ends for m: in_flight 2 (threshold 10), waiting 1 (threshold 5), kv_usage not known (threshold 0.9)"
    )


def test_each_model_has_its_own_switch_and_one_that_is_gone_is_forgotten():
    told = Told(CONFIG)
    for second in (0, 2):
        told.tick(second, OVER, model="a")
        told.tick(second, 0, model="b")
    assert told.switches.on == {"a"}
    assert told.switches.decide("b", None) is None
    told.switches.keep({"b"})
    assert told.switches.on == set()
    assert told.acts[-1][1:] == ("degrade_off", "load shedding (refuse) ends for a: it is not served any more")
    told.tick(3, OVER, model="a")
    told.tick(4.9, OVER, model="a")
    assert told.switches.on == set()


def test_a_threshold_of_zero_is_not_looked_at():
    told = Told(Degrade(enabled=True, in_flight=10, enter_after_s=0))
    told.tick(0, 10, 1000, 1.0)
    assert told.moves == []


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        (Degrade(), False),
        (Degrade(waiting=5, kv_usage=0.5), False),
        (Degrade(enabled=True, in_flight=5), False),
        (Degrade(enabled=True, waiting=5), True),
        (Degrade(enabled=True, kv_usage=0.5), True),
    ],
)
def test_engines_are_asked_only_where_a_threshold_needs_them(config, needs):
    assert Switches(config, print).needs_engines is needs


seconds = st.sampled_from([0.0, 0.2, 1.0, 2.0, 5.0]) | st.floats(0, 20).map(lambda value: round(value, 1))
ticks = st.lists(
    st.tuples(
        seconds,  # since the tick before
        st.sampled_from([0, 5, 20]) | st.integers(0, 20),
        st.none() | st.integers(0, 10),
        st.none() | st.floats(0, 1),
    ),
    max_size=60,
)
settings = st.fixed_dictionaries(
    {
        "enabled": st.just(True),
        "in_flight": st.integers(0, 12),
        "waiting": st.integers(0, 6),
        "kv_usage": st.floats(0, 1, exclude_max=True),
        "leave_at": st.floats(0, 1),
        "enter_after_s": seconds,
        "leave_after_s": seconds,
    }
)
configs = settings.filter(lambda given: given["in_flight"] or given["waiting"] or given["kv_usage"]).map(lambda given: Degrade(**given))


def is_over(config, signals):
    limits = (config.in_flight, config.waiting, config.kv_usage)
    return any(limit and value is not None and value > limit for value, limit in zip(signals, limits, strict=True))


def is_back(config, signals):
    limits = (config.in_flight, config.waiting, config.kv_usage)
    return all(not limit or value is None or value <= config.leave_at * limit for value, limit in zip(signals, limits, strict=True))


def moves_by_the_words(config, seen):
    """The ticks at which a switch moves, straight from what is promised: all ticks of a run that lasted, begun after the last move."""
    moved, last = [], -1
    for here, (now, _) in enumerate(seen):
        lasting_s, speaks = (config.leave_after_s, is_back) if len(moved) % 2 else (config.enter_after_s, is_over)
        runs = (range(start, here + 1) for start in range(last + 1, here + 1) if now - seen[start][0] >= int(lasting_s * S))
        if any(all(speaks(config, seen[each][1]) for each in run) for run in runs):
            moved.append(here)
            last = here
    return moved


@given(configs, ticks)
def test_whatever_the_signals_it_moves_just_when_what_speaks_for_it_has_lasted(config, ticks):
    assume(config.in_flight or config.waiting or config.kv_usage)
    told, seen, moved = Told(config), [], []
    second = 0.0
    for here, (step, *signals) in enumerate(ticks):
        second = round(second + step, 1)
        seen.append((int(second * S), signals))
        told.tick(second, *signals)
        moved += [here] * (len(told.acts) - len(moved))
    assert moved == moves_by_the_words(config, seen)
    instants = [seen[here][0] for here in moved]
    acts = [act for _, act, _ in told.acts]
    assert acts == (["degrade_on", "degrade_off"] * len(acts))[: len(acts)]
    for before, after, act in zip(instants, instants[1:], acts[1:], strict=False):
        assert after - before >= int((config.enter_after_s if act == "degrade_on" else config.leave_after_s) * S)


@given(settings, ticks)
def test_what_is_not_enabled_is_never_on(given_settings, ticks):
    told = Told(Degrade(**{**given_settings, "enabled": False}))
    second = 0.0
    for step, *signals in ticks:
        second += step
        told.tick(second, *signals)
        assert told.switches.decide("m", None) is None
    assert told.acts == []


@pytest.mark.parametrize(
    ("given_settings", "says"),
    [
        ({}, "without a threshold"),
        ({"kv_usage": 1.0}, "never exceeded"),
        ({"in_flight": 1, "act": "reroute"}, "without models"),
    ],
)
def test_a_switch_that_could_do_nothing_is_refused(given_settings, says):
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert({"enabled": True, **given_settings}, Degrade)


def switched_on(**config):
    switches = Switches(Degrade(enabled=True, in_flight=1, enter_after_s=0, **config), lambda _: None)
    for model in ("m", "small"):
        switches.tick(0, model, 2, None, None)
    assert switches.on == {"m", "small"}
    return switches


REROUTE = {"act": Act.REROUTE, "models": {"m": "small", "small": "smallest"}}


@pytest.mark.parametrize(
    ("config", "asked", "gets"),
    [
        ({"act": Act.REFUSE, "retry_after_s": 7}, 10, Degraded(Act.REFUSE, "m", retry_after_s=7)),
        ({"act": Act.CAP, "max_tokens": 256}, 1000, Degraded(Act.CAP, "m", 256, 0, 5)),
        ({"act": Act.CAP, "max_tokens": 256}, None, Degraded(Act.CAP, "m", 256, 0, 5)),
        ({"act": Act.CAP, "max_tokens": 256}, 256, None),
        ({"act": Act.CAP, "max_tokens": 256}, 1, None),
        ({"act": Act.CAP, "max_tokens": 256, "max_prompt_tokens": 900}, 1, Degraded(Act.CAP, "m", None, 900, 5)),
        ({"act": Act.CAP, "max_tokens": 0, "max_prompt_tokens": 900}, None, Degraded(Act.CAP, "m", None, 900, 5)),
        ({"act": Act.CAP, "max_tokens": 0}, None, None),
        (REROUTE, 10, Degraded(Act.REROUTE, "small")),
        ({"act": Act.REROUTE, "models": {"other": "small"}}, 10, None),
        ({"act": Act.REROUTE, "models": {"m": "m"}}, 10, None),
    ],
)
def test_what_a_request_gets_while_the_switch_is_on(config, asked, gets):
    assert switched_on(**config).decide("m", asked) == gets


def test_rerouting_takes_one_step_also_where_the_next_model_is_shed_too():
    switches = switched_on(**REROUTE)
    assert switches.decide("m", None).model == "small"
    assert switches.decide("small", None).model == "smallest"


@given(st.none() | st.integers(0, 2000), st.integers(0, 1000))
def test_a_cap_never_raises_what_was_asked(asked, cap):
    gets = switched_on(act=Act.CAP, max_tokens=cap).decide("m", asked)
    if gets is not None:
        assert gets.max_tokens == cap
        assert asked is None or cap < asked


def test_a_signal_older_than_three_scrapes_is_not_known():
    heard = Heard(Degrade(scrape_every_s=2))
    heard.note("a", Signals(4, 0.5), 0)
    heard.note("b", Signals(3, 0.7), 2 * S)
    heard.note("a", UNKNOWN, 4 * S)  # one scrape that failed
    assert heard.of(["a", "b", "never heard"], 6 * S) == Signals(7, 0.7)
    assert heard.of(["a", "b"], 6 * S + 1) == Signals(3, 0.7)
    assert heard.of(["a", "b"], 8 * S + 1) == UNKNOWN


def test_several_are_joined_to_all_that_waits_and_the_fullest_cache():
    assert joined([Signals(1, 0.2), Signals(None, 0.9), Signals(2, None)]) == Signals(3, 0.9)
    assert joined([]) == UNKNOWN


def asked(text, kind="vllm"):
    urls = []

    async def get(url):
        urls.append(url)
        if isinstance(text, BaseException):
            raise text
        return text

    said = asyncio.run(read_signals(get, "http://127.0.0.1:8000/engine", kind))
    assert urls == ["http://127.0.0.1:8000/engine/metrics"]
    return said


def test_a_real_engine_is_read():
    assert asked((CAPTURES / "metrics-3-under-load-queue-2.txt").read_text()) == Signals(10, pytest.approx(0.000122, abs=1e-6))
    assert asked((CAPTURES / "metrics-1-fresh-idle.txt").read_text()) == Signals(0, 0.0)


RANKS = """\
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="n"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 100.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
"""
OLD = 'vllm:num_requests_waiting{model_name="m"} 2\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
TENSOR_PARALLEL = "".join(f'sglang:num_queue_reqs{{model_name="m",tp_rank="{rank}"}} 6\n' for rank in range(4))


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        pytest.param("vllm", RANKS, Signals(12, 0.75), id="models and ranks"),
        pytest.param("vllm", OLD, Signals(2, 0.5), id="older names"),
        pytest.param("vllm", "vllm:num_requests_waiting 2\n", Signals(2, None), id="without labels"),
        pytest.param("sglang", TENSOR_PARALLEL, Signals(6, None), id="one queue that several tell of"),
        pytest.param("sglang", 'sglang:token_usage{model_name="m"} 0.31\n', Signals(None, 0.31), id="another engine"),
        pytest.param("vllm", TENSOR_PARALLEL, UNKNOWN, id="the wrong dialect"),
        pytest.param("nobody", RANKS, UNKNOWN, id="no such dialect"),
        pytest.param("kernel", RANKS, UNKNOWN, id="a dialect without metrics"),
        pytest.param("vllm", "<html>not found</html>", UNKNOWN, id="no metrics"),
        pytest.param("vllm", "vllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc +Inf\n", UNKNOWN, id="no numbers"),
        pytest.param("vllm", "vllm:num_requests_waiting -3\nvllm:kv_cache_usage_perc 1.2.3\n", UNKNOWN, id="nonsense"),
        pytest.param("vllm", OSError("refused"), UNKNOWN, id="unreachable"),
        pytest.param("vllm", TimeoutError(), UNKNOWN, id="silent"),
        pytest.param("vllm", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"), UNKNOWN, id="not text"),
    ],
)
def test_what_an_engine_says(kind, text, said):
    assert asked(text, kind) == said


def test_being_cancelled_is_no_failure_of_the_engine():
    with pytest.raises(asyncio.CancelledError):
        asked(asyncio.CancelledError())


@given(st.lists(st.sampled_from(RANKS.splitlines()) | st.text(max_size=40), max_size=12).map("\n".join))
def test_no_text_makes_it_raise(text):
    said = asked(text)
    assert said.waiting is None or said.waiting >= 0
    assert said.kv_usage is None or said.kv_usage >= 0


@given(st.floats(0, 1e9), st.floats(0, 1))
def test_what_stands_in_the_text_is_what_is_read(waiting, kv_usage):
    text = f"vllm:num_requests_waiting {waiting!r}\nvllm:kv_cache_usage_perc {kv_usage!r}\n"
    assert signals_in(text, "vllm") == Signals(round(waiting), kv_usage)
