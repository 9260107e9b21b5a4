"""33 public models in 69 settings: our figures are those of vLLM's own functions."""

import json
import subprocess

import model_shapes
import pytest
from checkout import ROOT

from lensd.memory import kv
from lensd.memory.pool import pool
from lensd.memory.serving import Serving
from lensd.memory.shape import Shape

CASES = list(zip(model_shapes.cases(), model_shapes.figures(), strict=True))
PYTHON = ROOT / ".engine" / "venv" / "bin" / "python"


def named(case):
    plain = model_shapes.case(case["model"])
    return " ".join([case["model"], *(f"{name}={value}" for name, value in case.items() if value != plain[name])])


@pytest.mark.parametrize(("case", "told"), CASES, ids=[named(case) for case, _ in CASES])
def test_as_vllm_computes_it(case, told):
    serving = Serving(
        **{name: case[name] for name in ("kv_dtype", "tp", "pp", "block_size", "batched_tokens", "batches", "hybrid", "prefix_caching")}
    )
    shape = Shape.from_config(case["config"])
    held = kv.capacity(shape, serving, case["available_bytes"], case["max_model_len"], version="0.32.0", blocks_override=case["override"])
    shared = pool(shape, serving)
    assert (shared.block_bytes, shared.groups[0].block_size) == (told["block_bytes"], told["block_size"])
    assert (held.need_bytes, held.longest, held.fits) == (told["need_bytes"], told["longest"], told["fits"])
    if held.fits:
        assert (held.blocks, held.tokens, held.concurrency) == (told["blocks"], told["tokens"], told["concurrency"])


def test_enough_was_compared():
    fits = [told["fits"] for _, told in CASES]
    assert len({case["model"] for case, _ in CASES}) >= 20
    assert fits.count(True) >= 40
    assert fits.count(False) >= 5


@pytest.mark.engine
@pytest.mark.slow
def test_the_figures_are_what_the_installed_vllm_says():
    if not PYTHON.exists():
        pytest.skip("no engine in .engine: `make engine` builds it")
    asked = json.dumps([case for case, _ in CASES])
    script = ROOT / "tests" / "lensd" / "memory" / "vllm_formulas.py"
    told = subprocess.run([PYTHON, script], input=asked, capture_output=True, text=True, timeout=300, check=True).stdout
    made = json.loads(told.strip().splitlines()[-1])
    assert made == [{name: value for name, value in figures.items() if name != "model"} for _, figures in CASES]
