"""One log record in OTLP's JSON, written straight as text, as span_json writes a span: an engine's plugin sends one a request."""

from lensd_collectors import otlp
from lensd_collectors.span_json import quoted

_IDS = (("traceId", 32), ("spanId", 16))


def write(
    name: str, pairs: str, *, at_ns: int | str, severity: str = "info", body: str | None = None, trace_id: str | None = None,
    span_id: str | None = None,
) -> str:  # fmt: skip
    """An event with its attributes, as `span_json.pairs` gives them. A severity unknown to OTLP has the number of "info"."""
    number = otlp.SEVERITY.get(severity, otlp.SEVERITY["info"])
    ids = [(key, otlp.hex_id(found, length)) for (key, length), found in zip(_IDS, (trace_id, span_id), strict=True)]
    more = "".join([f'"{key}":"{valid}",' for key, valid in ids if valid])
    if body is not None:
        more += f'"body":{{"stringValue":{quoted(body)}}},'
    return (
        f'{{"timeUnixNano":"{at_ns}","severityNumber":{number},"severityText":{quoted(severity.upper())},"eventName":{quoted(name)},'
        f'{more}"attributes":[{pairs}]}}'
    )
