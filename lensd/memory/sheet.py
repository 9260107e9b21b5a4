"""A plan as the sheet that goes beside a service: what it runs with, where the memory goes, and what breaks when a setting is changed."""

import shlex
from collections.abc import Sequence

import msgspec

from lensd.errors import LensdError
from lensd.memory import text
from lensd.memory.plan import Asked, Plan, plan
from lensd.memory.units import binary

LONGER = (2, 4)
"""Times the planned context that the sheet looks at, and the model's own limit."""


def as_markdown(asked: Asked, made: Plan) -> str:
    """The sheet. It plans again for each change that it tells the outcome of."""
    blocks = [
        f"# Deployment sheet: {made.model}",
        f"{text.headline(made)}.\n" + "".join(f"\n- {reason}" for reason in made.reasons),
        "## Run it with",
        _run_it(made),
        "## What is needed",
        _table(("what", "size", "how"), text.needed(made)),
        "## What fits",
        _table(("what", "figure", "how"), text.fitting(made)),
    ]
    if made.variants:
        rows = text.variant_rows(made.variants)
        blocks += ["## With other types", _table((*rows[0][:-1], "outcome"), rows[1:])]
    blocks += [
        "## Where the memory goes, on each card",
        _table(("band", "size", "how"), text.band_rows(made)),
        "## What breaks when a setting is changed",
        _table(("change", "outcome"), changes(asked, made)),
        "## Client timeouts",
        _table(("limit", "value", "how"), text.timeout_rows(made)),
    ]
    if made.assumed:
        blocks += ["## Taken for given", "\n".join(f"- {line}" for line in made.assumed)]
    return "\n\n".join(block.rstrip("\n") for block in blocks) + "\n"


def _run_it(made: Plan) -> str:
    first, *more = text.settings(made)
    command = f"```\nvllm serve {shlex.quote(made.model)} {first}\n```" if made.flags else first
    return "\n\n".join([command, *(f"{line[0].upper()}{line[1:]}." for line in more)])


def changes(asked: Asked, made: Plan) -> list[Sequence[str]]:
    """What a longer context, more requests, a larger share and a second engine on the card lead to."""
    start = made.flags.get("--max-model-len")
    context = start if isinstance(start, int) else asked.context
    longer = [context * times for times in LONGER]
    if made.positions is not None:
        longer = sorted({*(tokens for tokens in longer if tokens < made.positions), made.positions} - {context})
    rows = [(f"--max-model-len {tokens}", _longer(asked, tokens)) for tokens in longer if tokens > context]
    if made.positions is not None:
        rows.append((f"--max-model-len above {made.positions}", "the engine does not start: the model was made for no more"))
    if made.max_concurrency:
        most = f"more than {made.max_concurrency:,} such requests at once preempt one another and begin anew"
        rows.append((f"--max-num-seqs above {made.max_concurrency}", f"{most}, time to the first token rises"))
    rows.append(
        ("--gpu-memory-utilization above the one given", "less is left for activations beyond the profiled peak: out of memory under load")
    )
    rows.append(("another process on the card", "the engine does not start where less than its share is free"))
    return list(rows)


def _longer(asked: Asked, tokens: int) -> str:
    try:
        other = plan(msgspec.structs.replace(asked, context=tokens, max_tokens=None))
    except LensdError as error:
        return f"could not tell: {error}"
    if other.max_concurrency is None:
        return f"a request takes {binary(other.kv_bytes_per_request)}; could not tell what is there"
    if not other.max_concurrency or (other.longest_request or 0) < tokens:
        return f"the engine does not start: one request needs {binary(other.kv_bytes_per_request)} of KV cache"
    recommended = f"{other.recommended_concurrency:,} recommended"
    return f"{other.max_concurrency:,} at once, {recommended}: a request takes {binary(other.kv_bytes_per_request)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.strip().replace("|", "\\|") for cell in line) + " |" for line in lines)
