"""Writes the parts of the documentation that the code knows best, between markers such as `<!-- generated:routes -->`.

`make docs` runs it; a test fails while what is written differs from what it would write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from fastapi.routing import APIRoute

from holdfast import errors
from holdfast.api.framework.routing import built
from holdfast.api.not_implemented import REFUSED, UNBUILT, Family
from holdfast.api.server import ROUTERS
from holdfast.core.run import TRANSITIONS, Phase
from holdfast.settings import ENABLING_VARIABLES, PROVIDER_VARIABLES, Settings
from holdfast.variables import VARIABLES

Kind = TypeVar("Kind", bound=errors.HoldfastError)
ROOT: Final = Path(__file__).resolve().parent.parent
END: Final = "<!-- /generated -->"


def main() -> int:
    changed = stale()
    for path, text in changed.items():
        (ROOT / path).write_text(text)
        print(f"wrote {path}")
    return 0


def stale() -> dict[str, str]:
    """The files that differ from what they should be, with what they should be."""
    wanted = {path: filled(path) for path in files()}
    return {path: text for path, text in wanted.items() if text != (ROOT / path).read_text()}


def files() -> list[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in pages if "<!-- generated:" in page.read_text()]


def filled(path: str) -> str:
    text = (ROOT / path).read_text()
    for name, make in PARTS.items():
        start = f"<!-- generated:{name} -->"
        if start in text:
            before, _, rest = text.partition(start)
            _, found, after = rest.partition(END)
            if not found:
                raise ValueError(f"{path}: {start} has no {END}")
            text = f"{before}{start}\n{make().strip()}\n{END}{after}"
    return text


def diagram() -> str:
    edges = [
        f"    {_state(before)} --> {_state(after)}: {event.__name__}"
        for (before, event), afters in TRANSITIONS.items()
        for after in sorted(afters, key=lambda phase: phase.value)
    ]
    ends = [f"    [*] --> {_state(Phase.NEW)}", f"    {_state(Phase.DONE)} --> [*]"]
    return "\n".join(["```mermaid", "stateDiagram-v2", ends[0], *edges, ends[1], "```"])


def transitions() -> str:
    rows = [
        (f"`{before.value}`", f"`{event.__name__}`", ", ".join(sorted(f"`{after.value}`" for after in afters)))
        for (before, event), afters in TRANSITIONS.items()
    ]
    return _table(("A run that is", "and to which this happens", "is then"), rows)


def settings() -> str:
    defaults = Settings(data_dir=Path("unused"))
    rows = [
        (
            ", then ".join(f"`{name}`" for name in variable.names),
            _default(variable.field, getattr(defaults, variable.field)),
            variable.meaning,
        )
        for variable in VARIABLES
    ]
    return _table(("Variable", "Default", "Meaning"), rows)


def providers() -> str:
    enabling = ", ".join(f"`{name}`" for name in sorted(ENABLING_VARIABLES))
    tuning = ", ".join(f"`{name}`" for name in sorted(PROVIDER_VARIABLES - ENABLING_VARIABLES))
    return f"Any of these enables a provider: {enabling}.\n\nThese only tune one: {tuning}."


def request_errors() -> str:
    rows = [
        (f"`{kind.__name__}`", str(kind.status), "yes" if kind.retry_helps else "no")
        for kind in _family(errors.RequestError)
    ]
    return _table(("Error", "HTTP", "Trying again helps"), rows)


def model_errors() -> str:
    rows = [
        (
            f"`{kind.__name__}`",
            str(kind.status),
            f"`{kind.http_type}`" if kind.http_type else "`detail` only",
            f"`{kind.wire_type}`",
            f"`{kind.stop_reason}`",
        )
        for kind in _family(errors.ModelError)
    ]
    return _table(("Error", "HTTP", "`error.type`", "`error_type` in a stream", "`stop_reason` of the run"), rows)


def error_tree() -> str:
    _, _, tree = (errors.__doc__ or "").partition("\n\n")
    return f"```\n{tree.strip()}\n```"


def routes() -> str:
    served = [
        (method, f"`{route.path}`", _sentence(route))
        for router in ROUTERS
        for route in built(router.routes)
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in sorted(route.methods or ())
    ]
    return _table(("Method", "Path", ""), sorted(served, key=lambda row: (row[1].strip("`"), row[0])))


def unbuilt_routes() -> str:
    families = [
        (family.name, "<br>".join(f"`{operation}`" for operation in family.operations), _why(family))
        for family in UNBUILT
    ]
    refused = [("Refused for good", f"`{operation}`", sentence) for operation, sentence in REFUSED.items()]
    return _table(("What", "Operations", "Why"), [*families, *refused])


def unbuilt_families() -> str:
    missing = [family.name for family in UNBUILT if not (family.cloud_only or family.dropped)]
    hosted = [family.name for family in UNBUILT if family.cloud_only]
    dropped = [family.name for family in UNBUILT if family.dropped]
    lines = [
        f"- Not yet: {_enumerated(missing)}.",
        f"- Only ever in the hosted service: {_enumerated(hosted)}.",
        f"- Not part of Holdfast: {_enumerated(dropped)}.",
    ]
    return "\n".join(lines)


def decisions() -> str:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    return "\n".join(f"- [{page.read_text().splitlines()[0].removeprefix('# ')}]({page.name})" for page in pages)


PARTS: Final[dict[str, Callable[[], str]]] = {
    "diagram": diagram,
    "transitions": transitions,
    "settings": settings,
    "providers": providers,
    "request-errors": request_errors,
    "model-errors": model_errors,
    "error-tree": error_tree,
    "routes": routes,
    "unbuilt-routes": unbuilt_routes,
    "unbuilt-families": unbuilt_families,
    "decisions": decisions,
}


def _state(phase: Phase) -> str:
    return phase.value


def _default(field: str, value: object) -> str:
    match field, value:
        case "data_dir", _:
            return "the user's data directory"
        case "database_url", _:
            return "SQLite in the data directory"
        case "default_model", _:
            return "see the meaning"
        case _, None | () | dict():
            return "not set"
        case "mcp_stdio", _:
            return "`true`"
        case _, float():
            return f"`{value:g}`"
        case _:
            return f"`{value}`"


def _family(root: type[Kind]) -> Iterator[type[Kind]]:
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _family(child)


def _sentence(route: APIRoute) -> str:
    first, _, _ = (route.description or "").partition("\n\n")
    return " ".join(first.split()) or route.name.replace("_", " ").capitalize()


def _why(family: Family) -> str:
    if family.dropped:
        return "not part of Holdfast"
    return "only in the hosted service" if family.cloud_only else "not built yet"


def _enumerated(names: list[str]) -> str:
    lowered = [name if name[:2].isupper() else name[0].lower() + name[1:] for name in names]
    return ", ".join(lowered) if lowered else "nothing"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
