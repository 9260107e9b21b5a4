"""Walks every import of the three packages and names each that runs against the one way of the house, and each circle.

usage: imports.py [ROOT]     exit 1 when something is named; standard library only
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PLACES = {"lensd": "lensd", "lensd_collectors": "collectors/lensd_collectors", "lensd_dashboards": "dashboards/lensd_dashboards"}

ONE_WAY: tuple[tuple[str, ...], ...] = (
    # a room may import rooms of the lines above its own and of its own line
    ("lensd_collectors",),
    ("lensd.errors", "lensd.records"),
    ("lensd.store", "lensd.memory", "lensd.words", "lensd.report", "lensd.rungs"),
    ("lensd.receive", "lensd.timeline"),
    ("lensd.diagnosis",),
    ("lensd.incidents",),
    ("lensd.alerts",),
    ("lensd.config",),
    ("lensd.api",),
    ("lensd.judge",),
    ("lensd.daemon", "lensd.supervise"),
    ("lensd.demo", "lensd.attach"),
    ("lensd.cli", "lensd.__main__"),
)
ONLY: dict[str, tuple[str, ...]] = {
    # tighter than the line says: of our own, these import only what is named, and themselves
    "lensd_dashboards": ("lensd.api.client", "lensd.api.items", "lensd.records", "lensd.memory", "lensd.errors"),
    "lensd.api.client": ("lensd.api.items", "lensd.records", "lensd.memory", "lensd.errors"),
    "lensd.api.items": ("lensd.records", "lensd.errors"),
    "lensd.errors": (),
    "lensd.records": ("lensd_collectors.conventions", "lensd.errors"),
}
FOLDERS = ("tests", "runbooks", "collectors", "dashboards")
"""Folders of the checkout that look like packages in it and are none in the wheel."""


@dataclass(frozen=True)
class Arrow:
    """One import: who imports what, and where that stands."""

    importer: str
    imported: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}"


def modules(root: Path) -> dict[str, Path]:
    """Dotted name to file of every module of the three packages."""
    found: dict[str, Path] = {}
    for package, place in PLACES.items():
        for path in sorted((root / place).rglob("*.py")):
            parts = path.relative_to(root / place).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def arrows(root: Path) -> list[Arrow]:
    """Every import of our own packages, or of a folder that looks like one, also those inside functions."""
    known = modules(root)
    return [arrow for name, path in known.items() for arrow in _of_module(name, path, root, known)]


def _of_module(name: str, path: Path, root: Path, known: dict[str, Path]) -> Iterator[Arrow]:
    place = str(path.relative_to(root))
    for node in ast.walk(ast.parse(path.read_text(), place)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = _source(node, name, path)
            # `from lensd.store import writer` names a module, `from lensd.store.writer import Writer` does not
            targets = [joined if (joined := f"{source}.{alias.name}") in known else source for alias in node.names]
        else:
            continue
        for target in dict.fromkeys(targets):
            if target.split(".")[0] in (*PLACES, *FOLDERS):
                yield Arrow(name, target, place, node.lineno)


def _source(node: ast.ImportFrom, name: str, path: Path) -> str:
    """The absolute name behind `from`, relative ones resolved."""
    if not node.level:
        return node.module or ""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def _height(module: str) -> int | None:
    """On which line of the one way a module stands; None for a package's root and for a room that has no line yet."""
    return next((line for line, rooms in enumerate(ONE_WAY) if any(within(module, room) for room in rooms)), None)


def fault(arrow: Arrow) -> str | None:
    """Why an arrow may not be; None when it may."""
    importer, imported = arrow.importer, arrow.imported
    if imported.split(".")[0] in FOLDERS:
        return f"{imported.split('.')[0]} is a folder of the checkout, not a package"
    for place, allowed in ONLY.items():
        if within(importer, place) and not any(within(imported, other) for other in (place, *allowed)):
            return f"of our own, {place} imports only {', '.join(allowed) or 'nothing'}"
    if within(importer, "lensd_dashboards"):
        return None
    if within(imported, "lensd_dashboards"):
        return None if within(importer, "lensd.cli.dashboard") else "only its own command imports the dashboard"
    own, other = _height(importer), _height(imported)
    if importer == "lensd":
        return "the package's root imports nothing"
    if own is None or (other is None and imported != "lensd"):
        return f"{importer if own is None else imported} has no place in ONE_WAY of tools/imports.py"
    if other is not None and other > own:
        return f"it runs back: {importer} stands before {imported}"
    if imported == "lensd" and importer.startswith("lensd_collectors"):
        return "lensd_collectors imports nothing of lensd"
    return None


def circles(found: list[Arrow]) -> list[list[str]]:
    """Each group of modules that import each other in a ring, sorted; a package's root is not part of one."""
    graph: dict[str, set[str]] = {}
    for arrow in found:
        if arrow.importer != arrow.imported:
            graph.setdefault(arrow.importer, set()).add(arrow.imported)
    reach = {name: _reachable(name, graph) for name in graph}
    rings = {frozenset(other for other in reach[name] if name in reach.get(other, ())) for name in graph if name in reach[name]}
    return sorted(sorted(ring) for ring in rings)


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph.get(name, ()))
    return seen


def faults(root: Path) -> list[str]:
    """Everything that is wrong, one line each; empty when the house stands."""
    found = arrows(root)
    said = [f"{arrow}: {why}" for arrow in found if (why := fault(arrow))]
    return said + [f"circle: {' -> '.join([*ring, ring[0]])}" for ring in circles(found)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    try:
        said = faults(root)
    except SyntaxError as error:
        said = [f"{error.filename}:{error.lineno}: {error.msg}"]
    print("\n".join(said) if said else f"imports: {len(modules(root))} modules, one way, no circle")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
