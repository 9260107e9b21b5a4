"""What explains what among the rules about memory and hardware, by their front matter; that they do not stand beside each other on each
other's cases, the tests of all rules together show."""

import pytest

from lensd.diagnosis.runbook import load

BOOKS = load()
ENDS_ENGINES = (
    "oom-model-load", "oom-profiling-warmup", "oom-runtime-activation-spike", "oom-fragmentation", "kv-cache-too-small",
    "gpu-memory-held-by-other-process", "host-ram-oom", "gpu-hardware-fault",
)  # fmt: skip
"""What can end an engine; its death is then an effect, whatever the engine says of it."""


@pytest.mark.parametrize("name", ENDS_ENGINES)
def test_what_can_end_an_engine_explains_its_death_and_is_explained_by_none_of_its_effects(name: str) -> None:
    assert "engine-crash" in BOOKS[name].explains
    assert all(name not in BOOKS[effect].explains for effect in ("engine-crash", "engine-crash@window", "engine-silent-stall@window"))


def test_the_gpus_and_the_hosts_memory_do_not_explain_each_other() -> None:
    gpu = {name for name in BOOKS if name.startswith(("oom-", "gpu-memory"))}
    assert not gpu & set(BOOKS["host-ram-oom"].explains)
    assert all("host-ram-oom" not in BOOKS[name].explains for name in gpu)
