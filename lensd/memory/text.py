"""A plan as people read it in a terminal: what is needed, what fits, what other types would do, where the memory goes, what to set."""

from collections.abc import Iterable, Sequence

from lensd.memory.plan import Plan, Variant
from lensd.memory.units import binary, gib

Row = Sequence[str]


def as_text(plan: Plan) -> str:
    """The whole answer; sizes in powers of two only, names of cards on lines of their own."""
    blocks = [
        [headline(plan), *(f"  {reason}" for reason in plan.reasons)],
        ["What is needed", *aligned(needed(plan))],
        ["What fits", *aligned(fitting(plan))],
    ]
    if plan.variants:
        blocks.append(["With other types", *aligned(variant_rows(plan.variants))])
    blocks.append(["Where the memory goes, on each card", *aligned(band_rows(plan))])
    blocks.append(["Safe settings", *(f"  {line}" for line in settings(plan))])
    blocks.append(["Client timeouts", *aligned(timeout_rows(plan))])
    if plan.assumed:
        blocks.append(["Taken for given", *(f"  {line}" for line in plan.assumed)])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def headline(plan: Plan) -> str:
    """One line: the model, the card, the answer."""
    cards = f"{plan.gpus} cards {plan.gpu.name}" if plan.gpus > 1 else f"one card {plan.gpu.name}"
    asked = f"{plan.concurrency:,} request{'s' * (plan.concurrency > 1)} of {plan.context:,} tokens"
    told = {True: f"{asked} at once fit", False: f"{asked} at once do not fit", None: f"could not tell whether {asked} fit"}[plan.fits]
    return f"{plan.model} on {cards}: {told}"


def needed(plan: Plan) -> list[Row]:
    dtype = plan.model_dtype if plan.kv_dtype == "auto" else plan.kv_dtype
    per_token = [("KV cache, a token", binary(plan.kv_bytes_per_token), dtype)]
    if plan.kv_growth_per_token != plan.kv_bytes_per_token:
        per_token.append(("  beyond every window", binary(plan.kv_growth_per_token), "only layers that attend to all tokens grow"))
    if not plan.kv_bytes_per_token:
        per_token = []
    weights = "not known: give --parameters or --weights" if plan.weights_bytes is None else binary(plan.weights_bytes)
    note = "" if plan.weights_bytes is None else next(part.note for part in plan.memory if part.name == "weights")
    return [
        *per_token,
        ("KV cache, a request", binary(plan.kv_bytes_per_request), f"{plan.context:,} tokens in blocks of {plan.block_size:,}"),
        (f"KV cache, {plan.concurrency:,} at once", binary(plan.kv_bytes_total), ""),
        ("weights", weights, note),
    ]


def fitting(plan: Plan) -> list[Row]:
    positions = "config.json does not say" if plan.positions is None else f"{plan.positions:,} tokens"
    if plan.kv_budget_bytes is None or plan.max_concurrency is None or plan.engine_concurrency is None:
        return [("KV cache", "could not tell", "without the weights"), ("the model was made for", positions, "")]
    left = binary(max(0, plan.kv_budget_bytes))
    return [
        ("KV cache", left, f"{plan.kv_blocks:,} blocks of {binary(plan.kv_block_bytes)}, {plan.kv_cache_tokens:,} tokens"),
        ("requests at once", f"{plan.max_concurrency:,}", f"the engine will say {plan.engine_concurrency:.2f}x"),
        ("  recommended", f"{plan.recommended_concurrency:,}", "three quarters of it, rounded down"),
        ("longest context", f"{plan.max_context:,} tokens", f"with {plan.concurrency:,} at once; {plan.longest_request:,} for one alone"),
        ("the model was made for", positions, ""),
    ]


def variant_rows(variants: Iterable[Variant]) -> list[Row]:
    rows: list[Row] = [("weights", "KV cache", "weights take", "a token", "at once", "")]
    for each in variants:
        fits = "fits" if each.fits else "does not fit"
        rows.append(
            (
                each.weights_dtype,
                each.kv_dtype,
                binary(each.weights_bytes),
                binary(each.kv_bytes_per_token),
                f"{each.max_concurrency:,}",
                f"{fits}{', as asked' if each.current else ''}",
            )
        )
    return rows


def band_rows(plan: Plan) -> list[Row]:
    rows: list[Row] = [("the card", gib(plan.gpu.total_bytes), plan.gpu.note)]
    for part in plan.memory:
        rows.append((part.name, gib(part.bytes), ", ".join(filter(None, ("about" if part.estimated else "", part.note)))))
    return rows


def settings(plan: Plan) -> list[str]:
    if not plan.flags:
        return ["could not tell without the weights" if plan.weights_bytes is None else "none: no request of this model fits on this card"]
    line = command(plan)
    if not plan.fits:
        return [line, "with these it starts; what was asked for does not fit"]
    context, share = plan.flags["--max-model-len"], plan.flags["--gpu-memory-utilization"]
    if isinstance(context, int) and context < plan.context:
        return [line, f"with these it starts; what was asked for fits only with more of the card than {share}, which is not safe"]
    return [line]


def command(plan: Plan) -> str:
    return " ".join(f"{flag} {value}" for flag, value in plan.flags.items())


def timeout_rows(plan: Plan) -> list[Row]:
    limits = plan.timeouts
    source = "measured" if limits.measured else "assumed"
    return [
        ("connect", f"{limits.connect_s:g} s", ""),
        ("read", f"{limits.read_s:g} s", "the longest silence, the wait for the first token included"),
        ("total", f"{limits.total_s:g} s", f"{limits.max_tokens:,} tokens of answer"),
        ("from", f"{source}", f"p95: first token {limits.ttft_p95_s:g} s, each further one {limits.tpot_p95_s * 1000:g} ms"),
    ]


def aligned(rows: Sequence[Row]) -> list[str]:
    """Columns two spaces apart, indented by two."""
    widths = [max(len(row[column]) for row in rows) for column in range(max(len(row) for row in rows))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
