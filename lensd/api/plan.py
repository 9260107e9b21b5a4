"""What `/api/v1/plan` answers: GET what the store measured, POST a plan for the question in the body."""

import msgspec

from lensd.errors import UsageError
from lensd.memory.ask import Question, asked
from lensd.memory.lengths import LEAST_REQUESTS, Lengths
from lensd.memory.plan import Plan, plan
from lensd.store import lengths as stored
from lensd.store.interface import Cursor

MOST_BODY_BYTES = 4 * 1024 * 1024


def measured(cursor: Cursor, engine: str | None = None, model: str | None = None) -> Lengths:
    """How long the store's requests were, and how many ran at once."""
    return msgspec.convert(stored.lengths(cursor, engine, model, LEAST_REQUESTS), Lengths)


def planned(cursor: Cursor, body: bytes) -> Plan:
    """The plan for a question in JSON: the fields of `lensd.memory.ask.Question`. What it leaves open is taken from the store.

    Raises UsageError for a body that is no question, EvidenceError where the model's cache cannot be told.
    """
    if len(body) > MOST_BODY_BYTES:
        raise UsageError(f"a question of {len(body):,} bytes is too long: at most {MOST_BODY_BYTES:,}")
    try:
        question = msgspec.json.decode(body, type=Question)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the body is no question: {error}") from None
    return plan(asked(question, lengths=measured(cursor)))
