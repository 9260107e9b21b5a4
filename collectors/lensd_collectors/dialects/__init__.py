"""What engines, gateways and clients call things over their versions: data files, one a product, and their loader."""

from lensd_collectors.dialects.loader import load, loads
from lensd_collectors.dialects.model import (
    Dialect,
    DialectError,
    ErrorPattern,
    EventPattern,
    FailurePattern,
    Field,
    GpuSource,
    GpuTable,
    Meaning,
    Metric,
    MetricKind,
    Role,
    Selector,
    classify,
    milliseconds,
)

__all__ = [
    "Dialect",
    "DialectError",
    "ErrorPattern",
    "EventPattern",
    "FailurePattern",
    "Field",
    "GpuSource",
    "GpuTable",
    "Meaning",
    "Metric",
    "MetricKind",
    "Role",
    "Selector",
    "classify",
    "load",
    "loads",
    "milliseconds",
]
