"""Inside the calling app: `instrument()`, `budget()` and `retry()`. Standard library and msgspec only."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from lensd_collectors.client.budget import Budget, budget

if TYPE_CHECKING:
    from lensd_collectors.client.libraries import Instrumented, instrument
    from lensd_collectors.client.retries import Retries, retry, retry_async

__all__ = ["Budget", "Instrumented", "Retries", "budget", "instrument", "retry", "retry_async"]

_LATER: Final = {"Instrumented": "libraries", "instrument": "libraries", "Retries": "retries", "retry": "retries", "retry_async": "retries"}


def __getattr__(name: str) -> Any:
    """Loads what is asked for first when it is: who wants the budget alone pays for no exporter."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
