"""Which requests look like those of an LLM API: nothing else that an app sends is touched."""

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final

PATHS: Final = (
    "*/chat/completions", "/completions", "*/v1/completions", "/responses", "*/v1/responses", "/embeddings", "*/v1/embeddings",
    "*/v1/messages", "*/v1/audio/transcriptions", "*/v1/audio/translations", "*/v1/audio/speech", "*/rerank", "*/v1/score",
)  # fmt: skip
"""`*` stands for anything. Under /v1/ alone stand too many other APIs, an OTLP receiver's among them."""


def matcher(paths: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path, without host and query, is one of these."""
    found = re.compile("|".join(fnmatch.translate(path) for path in paths) or r"(?!)")
    return lambda path: found.match(path) is not None
