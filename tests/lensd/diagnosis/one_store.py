"""One store for the rows of one case after another: most of what a case costs alone is the making of its store."""

from functools import cache

from lensd.diagnosis.cases import evaluate_rows, store_of_cases
from lensd.diagnosis.evaluate import Evaluation
from lensd.store.memory import MemoryStore


@cache
def one_store() -> MemoryStore:
    return store_of_cases()


def evaluated(rows, books) -> Evaluation:
    """What these rules say of these rows alone."""
    return evaluate_rows(one_store(), rows, books)
