"""Writes the reference pages that are made from the code: wire names, public tables, configuration, runbooks, coverage.

usage: docs.py [--check]     --check writes nothing and exits 1 when a page is stale; standard library only
"""

import argparse
import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONVENTIONS = "collectors/lensd_collectors/conventions.py"
GATEWAY_METRICS = "collectors/lensd_collectors/gateway/metrics.py"
SCHEMA = "lensd/store/schema.sql"
RUNGS = "lensd/rungs.py"
SHOWN_STAGES = {"client": "client", "auth_routing": "auth/routing", "queue": "queue", "frontend": "front end", "prefill": "prefill",
                "decode": "decode", "streaming": "streaming"}  # fmt: skip
STRUCTS = (
    ("serve", "lensd/config.py", "ServeConfig"),
    ("serve.limits", "lensd/receive/limits.py", "DoorLimits"),
    ("store", "lensd/store/config.py", "StoreConfig"),
    ("timeline", "lensd/timeline/limits.py", "Limits"),
    ("gateway", "collectors/lensd_collectors/gateway/config.py", "GatewayConfig"),
    ("gateway.upstreams", "collectors/lensd_collectors/gateway/config.py", "Upstream"),
    ("gateway.retry", "collectors/lensd_collectors/gateway/config.py", "Retry"),
    ("gateway.degrade", "collectors/lensd_collectors/gateway/config.py", "Degrade"),
    ("agent", "collectors/lensd_collectors/host/config.py", "AgentConfig"),
    ("agent.engines", "collectors/lensd_collectors/host/config.py", "WatchedEngine"),
    ("dashboard", "lensd/config.py", "DashboardConfig"),
    ("runbooks", "lensd/config.py", "RunbooksConfig"),
    ("alerts", "lensd/alerts/config.py", "AlertsConfig"),
    ("alerts.webhooks", "lensd/alerts/destinations/alertmanager_webhook.py", "Webhook"),
)
MADE = "<!-- Made by tools/docs.py from {source}: edit that, then run `make docs`. -->"
TABLE = re.compile(r"((?:^--[^\n]*\n)*)^CREATE TABLE (\w+) \(\n(.*?)^\)", re.M | re.S)
COLUMN = re.compile(r"^\s+(\w+) ([^,\n]+?),?\s*(?:--\s*(.*))?$", re.M)


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").strip() for cell in cells) + " |"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def conventions(source: str) -> str:
    """The page of wire names: enums with their values, then attributes, spans, events and metrics under the module's own headings."""
    lines = source.splitlines()
    tree = ast.parse(source)
    page = ["# Wire names", "", MADE.format(source=CONVENTIONS), "", *(ast.get_docstring(tree) or "").splitlines()]
    section, columns = "", [""]
    for node in tree.body:
        heading = _heading(lines, node.lineno)
        block = list(_block(node, lines))
        if not block:
            continue
        if isinstance(node, ast.ClassDef):
            page += ["", f"## {node.name}", "", *block]
            continue
        if heading != section:
            page += ["", f"## {heading}"]
        if (heading, _columns(node)) != (section, columns):
            section, columns = heading, _columns(node)
            page += ["", *columns]
        page += block
    return "\n".join(page) + "\n"


def _heading(lines: list[str], lineno: int) -> str:
    """The nearest comment at the margin above a line: the module's own headings."""
    return next((line[2:].strip() for line in reversed(lines[: lineno - 1]) if line.startswith("# ")), "Names")


def _columns(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        return [row("attribute", "type", "unit", "meaning"), row("---", "---", "---", "---")]
    return [row("name", "meaning"), row("---", "---")]


def _block(node: ast.stmt, lines: list[str]) -> Iterator[str]:
    """The lines of the page for one statement of the module: none for imports and machinery."""
    match node:
        case ast.ClassDef(bases=[ast.Name(id="StrEnum")]):
            if said := ast.get_docstring(node):
                yield from [*said.splitlines(), ""]
            yield from [row("value", "meaning"), row("---", "---")]
            for member in node.body:
                if isinstance(member, ast.Assign) and isinstance(member.value, ast.Constant):
                    yield row(code(str(member.value.value)), _comment(lines, member))
        case ast.Assign(value=ast.Call(func=ast.Name(id="_attribute"), args=arguments)):
            name, kind, unit, meaning = (str(argument.value) for argument in arguments if isinstance(argument, ast.Constant))
            yield row(code(name), kind, unit, meaning)
        case ast.Assign(value=ast.Constant(value=str(name))):
            yield row(code(name), _comment(lines, node))
        case ast.AnnAssign(value=ast.Dict(keys=keys, values=values)) if keys:
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    yield row(code(str(key.value)), f"column {code(str(value.value))}")


def _comment(lines: list[str], node: ast.stmt) -> str:
    """The comment at the end of a statement's line."""
    rest = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset or 0 :].decode()
    return rest.strip().removeprefix("#").strip()


def gateway_metrics(source: str) -> str:
    """The section of the gateway's own metrics, from METRICS of its module."""
    page = ["", "## Metrics of the gateway", "", MADE.format(source=GATEWAY_METRICS), ""]
    page += ["Prometheus text at the gateway's `/metrics`.", "", row("metric", "type", "labels", "meaning"), row(*["---"] * 4)]
    for node in ast.parse(source).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="METRICS"), value=ast.Tuple(elts=described)):
                for entry in described:
                    assert isinstance(entry, ast.Call)
                    name, kind, labels, meaning = (ast.literal_eval(argument) for argument in entry.args)
                    page.append(row(code(name), kind, ", ".join(code(label) for label in labels), meaning))
    return "\n".join(page) + "\n"


def schema(source: str) -> str:
    """The page of public tables: every column with its type and what it means."""
    page = ["# Public tables", "", MADE.format(source=SCHEMA), ""]
    page += [line.removeprefix("--").strip() for line in source.split("\n\n")[0].splitlines() if line.startswith("--")]
    for comment, name, body in TABLE.findall(source):
        said = [line.removeprefix("--").strip() for line in comment.splitlines()]
        page += ["", f"## {name}", "", *said, "", row("column", "type", "meaning"), row("---", "---", "---")]
        page += [row(code(column), kind, meaning) for column, kind, meaning in COLUMN.findall(body)]
    return "\n".join(page) + "\n"


def configuration(root: Path) -> str:
    """The page of lensd.toml: every table with its keys, their types, defaults and meaning."""
    page = ["# Configuration", "", MADE.format(source="the parts' own config structs"), ""]
    page += [
        "One `lensd.toml`, looked for at `--config`, `./lensd.toml`, `~/.config/lensd/lensd.toml`, `/etc/lensd/lensd.toml`. Every value",
        "also as `LENSD_TABLE__KEY` in the environment: `LENSD_GATEWAY__LISTEN=127.0.0.1:9000`. An unknown key is an error.",
    ]
    for table, path, name in STRUCTS:
        source = (root / path).read_text()
        node = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name)
        constants = {
            n.targets[0].id: ast.unparse(n.value)
            for n in ast.parse(source).body
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
        }
        is_list = table.partition(".")[2] not in ("", "limits", "retry", "degrade")
        page += ["", f"## {f'[[{table}]]' if is_list else f'[{table}]'}", "", *(ast.get_docstring(node) or "").splitlines(), ""]
        page += [row("key", "type", "default", "meaning"), row("---", "---", "---", "---")]
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                default = ast.unparse(field.value) if field.value is not None else "required"
                comment = _comment(source.splitlines(), field)
                page.append(row(code(field.target.id), code(_kind(field.annotation)), code(constants.get(default, default)), comment))
    return "\n".join(page) + "\n"


def _kind(annotation: ast.expr) -> str:
    """The type as people write it: bounds are told by the error that a value over them gives."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            return ast.unparse(first)
        case ast.Name(id="AboveZero" | "Seconds"):
            return "float"
    return ast.unparse(annotation)


def runbooks(root: Path) -> str:
    """The page of causes: every runbook with what it says and where it is judged."""
    page = ["# Runbooks", "", MADE.format(source="runbooks/"), "", "`lensd runbooks show ID` prints one whole.", ""]
    page += [row("id", "kind", "severity", "stage", "scope", "what it says"), row("---", "---", "---", "---", "---", "---")]
    for path in sorted((root / "runbooks").glob("*.md")):
        front = dict(re.findall(r"^(\w+): (.*)$", path.read_text().split("---\n")[1], re.M))
        link = f"[{path.stem}](../runbooks/{path.name})"
        page.append(row(link, *(front[key] for key in ("kind", "severity", "stage", "scope", "title"))))
    return "\n".join(page) + "\n"


def coverage(root: Path) -> str:
    """The page of what each rung of attaching shows: stages, ids, labels, and the line that adds it."""
    rungs = _loaded(root / RUNGS)
    page = ["# Coverage", "", MADE.format(source=f"{RUNGS} and the `needs` in runbooks/"), ""]
    page += [
        "What lensd sees of a vLLM at each rung of attaching, with all rungs before it. `lensd attach URL` says which of them are there",
        "and prints the one line that adds the next. A stage is named with the source its time is taken from, `-` is not observed.",
    ]
    page += ["", "## Stages", "", row("rung", "adds", *SHOWN_STAGES.values()), row(*["---"] * (2 + len(SHOWN_STAGES)))]
    for rung in rungs.RUNGS:
        found = rungs.stages(rungs.below(rung.key))
        page.append(row(rung.key, rung.name, *(code(found.get(stage, "")) or "-" for stage in SHOWN_STAGES)))
    for beside in rungs.BESIDE:
        page.append(row(beside.key, beside.name, *(code(beside.stages.get(stage, "")) or "-" for stage in SHOWN_STAGES)))
    page += ["", *(f"- {note}" for note in rungs.NOTES)]
    page += ["", "## Requests and ids", "", row("rung", "which requests", "found by"), row(*["---"] * 3)]
    page += [row(rung.key, rung.requests, "; ".join(rung.ids) or "-") for rung in rungs.RUNGS]
    page += ["", "## Labels", "", "A label is claimed from the rung on at which all is there that its rule needs; `host`: with the agent"]
    page += [
        "on the engine's host, `client`: with the caller instrumented, `-`: from files alone (`lensd triage`). Behind each column stand"
    ]
    page += ["the rungs that write it.", ""]
    needs = runbook_needs(root, rungs)
    live = {name.partition("@")[0] for name in needs if rungs.first(name, needs) is not None}
    page += [f"{len(live)} labels are told live.", ""]
    page += [row("runbook", "from rung", "its rule needs", "not before, though its columns are there"), row(*["---"] * 4)]
    for name, claim in needs.items():
        from_rung = rungs.first_in_words(name, needs) or "-"
        each = [_written(rungs, column) for column in claim.needs]
        groups = [" with ".join(_written(rungs, column) for column in group) for group in claim.needs_any]
        asked = " and ".join([*each, *([" or ".join(groups)] if groups else [])])
        page.append(row(f"[{name}](../runbooks/{name}.md)", from_rung, asked, claim.rung_because or ""))
    page += ["", "## Who writes what", "", "Columns that rules need, and who writes them on a live system.", ""]
    page += [row("column", "rung", "collector"), row(*["---"] * 3)]
    for column in sorted({c for claim in needs.values() for c in (*claim.needs, *(c for group in claim.needs_any for c in group))}):
        found = rungs.writers(column)
        page.append(
            row(code(column), ", ".join(r.key for r in found) or "-", "; ".join(dict.fromkeys(r.collector for r in found)) or "files")
        )
    page += ["", "## The lines", "", "`...` is what vLLM is started with now, `NAME` what the engine is called in `lensd.toml`."]
    for rung in rungs.RUNGS:
        page += ["", f"Rung {rung.key}, {rung.name} ({rung.where}): {rung.adds}.", "", "```"]
        page += [rungs.line(rung.key, url="http://127.0.0.1:8000"), "```"]
    for beside in rungs.BESIDE:
        page += ["", f"{beside.name.capitalize()} ({beside.where}): {beside.adds}.", "", "```", beside.line, "```"]
    return "\n".join(page) + "\n"


def _written(rungs: ModuleType, column: str) -> str:
    return f"{code(column)} ({', '.join(rung.key for rung in rungs.writers(column)) or 'files'})"


def runbook_needs(root: Path, rungs: ModuleType) -> dict[str, Any]:
    """Of each runbook what its front matter says of when it can be told, as `Claim` of lensd/rungs.py."""
    found = {}
    for path in sorted((root / "runbooks").glob("*.md")):
        front = re.sub(r"\n\s+", " ", path.read_text().split("---\n")[1])
        values = dict(re.findall(r"^(needs|needs_any|live|rung|rung_because): (.*)$", front, re.M))
        groups = re.findall(r"\[([^\[\]]*)\]", values.get("needs_any", ""))
        rung, because = (values.get(key, "").strip("\"'") or None for key in ("rung", "rung_because"))
        needs, needs_any = _columns_in(values.get("needs", "")), [_columns_in(group) for group in groups]
        found[path.stem] = rungs.Claim(needs, needs_any, values.get("live") != "false", rung, because)
    return found


def _columns_in(text: str) -> list[str]:
    return re.findall(r"[a-z_]+\.[a-z_]+", text)


def _loaded(path: Path) -> ModuleType:
    """A module of ours that needs nothing but the standard library, by its file."""
    spec = importlib.util.spec_from_file_location("docs_rungs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages(root: Path) -> dict[Path, str]:
    """Every page that is made, with what it should hold."""
    return {
        root / "docs/conventions.md": conventions((root / CONVENTIONS).read_text()) + gateway_metrics((root / GATEWAY_METRICS).read_text()),
        root / "docs/schema.md": schema((root / SCHEMA).read_text()),
        root / "docs/configuration.md": configuration(root),
        root / "docs/runbooks.md": runbooks(root),
        root / "docs/coverage.md": coverage(root),
    }


def stale(root: Path) -> list[str]:
    """The pages that do not say what the code says."""
    return [str(path.relative_to(root)) for path, text in pages(root).items() if not path.exists() or path.read_text() != text]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    if parser.parse_args().check:
        old = stale(ROOT)
        print(f"docs: stale: {', '.join(old)}; run `make docs`" if old else "docs: as the code says")
        return 1 if old else 0
    for path, text in pages(ROOT).items():
        path.write_text(text)
        print(f"docs: wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
