"""`lensd plan`: what fits on a card with a model, a context and so many requests at once; what a running engine wastes."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from lensd.cli import options as o

if TYPE_CHECKING:
    from lensd.memory.lengths import Lengths
    from lensd.memory.plan import Asked, Plan

TIMEOUT_S: Final = 5.0
DOES_NOT_FIT: Final = 3
NOT_TOLD: Final = 5
HELP: Final = (
    "What a model, a card, a context and so many requests at once need, what fits, what other types would do, where the memory goes, "
    "and settings that are safe. Exits with 3 where it does not fit, with 5 where that cannot be told. With --from-engine: what a "
    "running vLLM sets aside and does not use."
)


def register(app: typer.Typer) -> None:
    app.command("plan", short_help="Say what fits on a GPU, and which settings are safe.", help=HELP)(plan)


def plan(
    model: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="The model's config.json, or its folder.", show_default=False)
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="CARD", help="A card by name (L4, H100) or by size (24GiB).")] = None,
    context: Annotated[
        int | None, typer.Option("--context", metavar="TOKENS", help="Longest request, prompt and answer.", show_default="the store's P99")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", help="Requests at once.", show_default="the store's P99 where it is asked, else 1"),
    ] = None,
    turns: Annotated[int | None, typer.Option("--turns", metavar="N", help="Instead of --context: turns of a conversation.")] = None,
    turn_tokens: Annotated[
        int | None, typer.Option("--turn-tokens", metavar="TOKENS", help="Of a turn's question; its answer as long.")
    ] = None,
    weights_dtype: Annotated[
        str | None, typer.Option("--weights-dtype", metavar="TYPE", help="bf16, fp16, fp8, int8, int4.", show_default="the model's")
    ] = None,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", metavar="TYPE", help="bf16, fp16, fp8, int8; auto: the model's.")] = "auto",
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option("--pp", metavar="N", help="Pipeline-parallel ranks.")] = 1,
    utilization: Annotated[float, typer.Option("--utilization", metavar="SHARE", help="Of the card, for the engine.")] = 0.9,
    parameters: Annotated[
        str | None, typer.Option("--parameters", metavar="N", help="7B: where config.json does not tell.", show_default="counted")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="SIZE", help="Of all weights: 14GB.", show_default="from the files, or the parameters"),
    ] = None,
    overhead: Annotated[
        str | None, typer.Option("--overhead", metavar="SIZE", help="Beside weights and KV cache, a card.", show_default="estimated")
    ] = None,
    block_size: Annotated[int | None, typer.Option("--block-size", metavar="TOKENS", help="Of the KV cache.", show_default="16")] = None,
    batched: Annotated[
        int | None, typer.Option("--max-num-batched-tokens", metavar="TOKENS", help="Of a step.", show_default="vLLM's for the card")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="TOKENS", help="Of an answer, for the timeouts.", show_default="1024")
    ] = None,
    engine_version: Annotated[str | None, typer.Option("--engine-version", metavar="VERSION", help="Of vLLM: 0.32.0.")] = None,
    from_engine: Annotated[str | None, typer.Option("--from-engine", metavar="URL", help="Say what this running vLLM wastes.")] = None,
    api_key_file: Annotated[str, typer.Option("--api-key-file", metavar="FILE", help="The key that the engine wants.")] = "",
    form: o.FormatOption = o.Format.TEXT,
    json_flag: o.JsonFlag = False,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    from lensd.errors import UsageError
    from lensd.memory import ask, model_dir
    from lensd.memory.plan import plan as planned

    form = o.Format.JSON if json_flag else form
    if from_engine is not None:
        return _wasted(from_engine, api_key_file, model, form, (server, store, config))
    if model is None or gpu is None:
        raise UsageError("give the model's config.json or folder, and --gpu; or --from-engine")
    found = model_dir.read(model, weights=weights is None and parameters is None)
    question = ask.Question(
        gpu=gpu,
        config=found.config,
        model=found.name,
        context=context,
        concurrency=concurrency,
        turns=turns,
        turn_tokens=turn_tokens,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        tp=tp,
        pp=pp,
        utilization=utilization,
        parameters=parameters,
        weights=weights,
        overhead=overhead,
        block_size=block_size,
        max_num_batched_tokens=batched,
        max_tokens=max_tokens,
        engine_version=engine_version,
    )
    is_open = context is None and turns is None
    asked = ask.asked(question, found.weights, _lengths(server, store, config) if is_open or server or store else None)
    return _print(asked, planned(asked), form)


def _print(asked: "Asked", made: "Plan", form: o.Format) -> int:
    from lensd.memory import sheet, text

    if form is o.Format.JSON:
        o.print_json(made)
    else:
        print(text.as_text(made) if form is o.Format.TEXT else sheet.as_markdown(asked, made), end="")
    return {True: 0, False: DOES_NOT_FIT, None: NOT_TOLD}[made.fits]


def _lengths(server: str | None, store: str | None, config: str | None, *of: dict[str, str]) -> "Lengths":
    """As measured of the first of these engines and models that was.

    Nothing where there is neither a daemon nor a store. Raises NoStoreError where one was named.
    """
    from lensd.errors import NoStoreError
    from lensd.memory.lengths import Lengths

    measured = Lengths()
    try:
        with o.open_reader(o.load_config(config), server, store) as reader:
            for which in of or ({},):
                measured = reader.lengths(**which)
                if measured.is_measured and measured.running_p99:
                    break
    except NoStoreError:
        if server or store:
            raise
    return measured


def _wasted(url: str, key_file: str, model: str | None, form: o.Format, place: tuple[str | None, str | None, str | None]) -> int:
    from lensd_collectors.host.config import WatchedEngine
    from lensd_collectors.host.engine import AgentError, fetch_with, resolve

    from lensd.errors import UsageError
    from lensd.memory import running

    try:
        engine = resolve(WatchedEngine(url=url, api_key_file=key_file))
        watched = [resolve(WatchedEngine(url=each.url, name=each.name)) for each in o.load_config(place[2]).agent.engines]
    except AgentError as error:
        raise UsageError(str(error)) from None
    found = running.look(engine, fetch_with(TIMEOUT_S))
    name = next((each.name for each in watched if (each.host, each.port) == (engine.host, engine.port)), engine.name)
    of = [{"engine": name}, {"model": found.model}] if found.model else [{"engine": name}]
    measured = _lengths(*place, *of)
    waste = running.waste(found, measured, running.block_bytes(found, model))
    if form is o.Format.JSON:
        o.print_json(waste)
    else:
        print(running.as_text(waste), end="")
    return NOT_TOLD if waste.idle_tokens is None else 0
