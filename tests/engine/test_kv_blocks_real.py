"""What lensd works out of a KV cache from config.json and settings is what a real engine prints at its start, or refuses to start for."""

import os

import pytest
from checkout import serving
from gateway_real import ask
from kv_settings import DEEPSEEK, GEMMA, MISTRAL, Setting, in_gib, printed, refused

pytestmark = pytest.mark.engine
every_setting = pytest.mark.skipif(
    not os.environ.get("LENSD_EVERY_KV_SETTING"), reason="each starts an engine of its own: `make test-kv-settings`"
)

SHARED = {
    # engines that other tests have too, by the fixture that has them
    "engine": Setting("as it comes"),
    "engine_plugged": Setting("nine blocks", blocks=9),
    "engine_long": Setting("32,768 tokens", 32_768, "model-32k", batched_tokens=512),
}
OWN = (
    Setting("kv-smaller-blocks", block_size=32),
    Setting("kv-fp8", kv_dtype="fp8"),
    Setting("kv-one-head-and-windows", 4096, config=MISTRAL),
    Setting("kv-windows-and-full", 4096, config=GEMMA),
    Setting("kv-latent", 2048, config=DEEPSEEK),
    Setting("kv-just-fits", blocks=5),
)
NEVER_FITS = Setting("kv-never-fits", blocks=4)
TOO_LONG = (
    Setting("kv-windows-never-fit", 8192, config=GEMMA, blocks=70),
    Setting("kv-never-fits-in-a-gib", 3_000_000, model_dir="model"),
)


def check(setting, engine):
    said = printed(engine.log.read_text(), ask(engine, "/metrics").body.decode())
    predicted = setting.predicted(said.block_size) if setting.config is DEEPSEEK else setting.predicted()
    print(f"{setting.name}: {said}")
    assert predicted.fits
    assert (predicted.blocks, predicted.tokens, f"{predicted.concurrency:.2f}") == (said.blocks, said.tokens, said.concurrency)
    assert predicted.concurrency == pytest.approx(said.exact_concurrency, rel=1e-12)


def check_refused(setting, starter, folder):
    predicted = setting.predicted()
    assert not predicted.fits
    engine = setting.start(starter, folder)
    try:
        with pytest.raises(serving.EngineError):
            engine.wait_ready()
        said = refused(engine.log.read_text())
    finally:
        engine.stop()
    print(f"{setting.name}: {said}")
    assert said is not None, engine.log.read_text()[-2000:]
    assert (said.max_model_len, said.longest) == (setting.max_model_len, predicted.longest)
    assert (said.need, said.available) == (in_gib(predicted.need_bytes), in_gib(predicted.usable_bytes))


@pytest.mark.parametrize("fixture", SHARED)
def test_blocks_size_and_concurrency_are_what_the_engine_prints(request, fixture):
    found = request.getfixturevalue(fixture)
    check(SHARED[fixture], found if fixture == "engine" else found.ready())


def test_what_never_fits_is_refused_and_the_longest_that_would_is_the_engines_estimate(engine_starter, tmp_path):
    check_refused(NEVER_FITS, engine_starter, tmp_path)


@every_setting
@pytest.mark.parametrize("setting", OWN, ids=lambda setting: setting.name)
def test_the_same_under_other_settings(engine_starter, tmp_path, setting):
    engine = setting.start(engine_starter, tmp_path)
    try:
        check(setting, engine.wait_ready())
    finally:
        engine.stop()


@every_setting
@pytest.mark.parametrize("setting", TOO_LONG, ids=lambda setting: setting.name)
def test_others_that_never_fit(engine_starter, tmp_path, setting):
    check_refused(setting, engine_starter, tmp_path)
