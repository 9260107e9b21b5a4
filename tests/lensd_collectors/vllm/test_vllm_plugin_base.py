"""Beside a vLLM of whatever version the stat logger is a subclass that can be made, or can't be imported: never a failed start.

vLLM leaves out a plugin whose import fails, and does not start with one that is no subclass or stays abstract.
"""

import subprocess
import sys
import textwrap

import pytest

BASE = """
    class StatLoggerBase(abc.ABC):
        @abc.abstractmethod
        def __init__(self, vllm_config, engine_index=0): ...
        @abc.abstractmethod
        def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
        @abc.abstractmethod
        def log_engine_initialized(self): ...
        def log(self): ...
        def record_sleep_state(self, is_awake, level): ...
"""
MORE = """
        @abc.abstractmethod
        def flush_everything(self, deadline_s, *, force): raise NotImplementedError
        @abc.abstractmethod
        async def aclose(self): raise NotImplementedError
"""
AGGREGATE = """
    class AggregateStatLoggerBase(abc.ABC):
        @abc.abstractmethod
        def __init__(self, vllm_config, engine_indexes): ...
        @abc.abstractmethod
        def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
"""
AGGREGATE_OF_BASE = AGGREGATE.replace("abc.ABC", "StatLoggerBase")
STATEFUL = """
    class StatLoggerBase:
        def __init__(self, vllm_config, engine_index=0): self.config = vllm_config
        def record(self, scheduler_stats, iteration_stats): ...
        def summary(self): return self.config
"""
MAKES = {
    "per engine": "LensdStatLogger('config', 1)",
    "by name": "LensdStatLogger(vllm_config='config', engine_index=1)",
    "aggregate": "LensdStatLogger(vllm_config='config', engine_indexes=[0, 1])",
}


def run(base: str, then: str) -> str:
    """What `then` prints where vLLM runs with this module of stat loggers."""
    code = f"import abc, asyncio, sys, types\n{textwrap.dedent(base)}\n" + textwrap.dedent("""
        loggers = types.ModuleType("vllm.v1.metrics.loggers")
        loggers.__dict__.update({k: v for k, v in globals().items() if k.endswith("Base")})
        sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.v1.metrics.loggers": loggers}
        try:
            from lensd_collectors.vllm.plugin import LensdStatLogger, Base
        except ImportError as error:
            print("ImportError:", error)
            sys.exit()
    """)
    done = subprocess.run([sys.executable, "-c", code + textwrap.dedent(then)], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (BASE, "StatLoggerBase"),
        (BASE + MORE, "StatLoggerBase"),
        (AGGREGATE, "AggregateStatLoggerBase"),
        (BASE + AGGREGATE, "StatLoggerBase"),  # vLLM asks for a subclass of this one
        (BASE + AGGREGATE_OF_BASE, "AggregateStatLoggerBase"),
        (STATEFUL, "StatLoggerBase"),
    ],
    ids=["as-is", "more", "aggregate", "apart", "both", "stateful"],
)
@pytest.mark.parametrize("made", MAKES.values(), ids=MAKES)
def test_it_is_a_subclass_that_can_be_made_and_called(base: str, name: str, made: str) -> None:
    then = f"""
        logger = {made}
        print(isinstance(logger, Base), Base.__name__, logger.record(None, None, mm_cache_stats=None, engine_idx=1), logger.log())
    """
    assert run(base, then) == f"True {name} None None"


def test_methods_that_a_later_base_wants_do_nothing() -> None:
    then = "made = LensdStatLogger(None); print(made.flush_everything(1.0, force=True), asyncio.run(made.aclose()))"
    assert run(BASE + MORE, then) == "None None"


def test_what_a_later_base_does_itself_has_what_it_needs() -> None:
    assert run(STATEFUL, "print(LensdStatLogger('config').summary())") == "config"


@pytest.mark.parametrize("base", ["", "StatLoggerBase = 'gone'", "def StatLoggerBase(): ..."])
def test_without_a_base_class_it_can_not_be_imported(base: str) -> None:
    assert run(base, "print(LensdStatLogger)").startswith("ImportError: this vLLM has no StatLoggerBase in vllm.v1.metrics.loggers")


def test_without_the_module_of_stat_loggers_it_can_not_be_imported() -> None:
    code = """
        import sys, types
        sys.modules["vllm"] = types.ModuleType("vllm")
        try:
            import lensd_collectors.vllm.plugin
        except ImportError:
            print("left out")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "left out"
