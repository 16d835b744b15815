from __future__ import annotations

import importlib.util
import inspect
import re
from types import ModuleType

import pytest
from fastapi.routing import APIRoute

from holdfast import errors
from holdfast.api.framework.routing import built
from holdfast.api.not_implemented import REFUSED, UNBUILT
from holdfast.api.server import ROUTERS
from holdfast.settings import PROVIDER_VARIABLES, Settings
from holdfast.variables import VARIABLES

from .sources import ROOT, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md"]


def test_the_generated_parts_are_up_to_date() -> None:
    stale = _generator().stale()
    assert not stale, f"{', '.join(stale)}: run `make docs`"


def test_every_setting_is_documented() -> None:
    page = _page("settings.md")
    names = {name for variable in VARIABLES for name in variable.names} | PROVIDER_VARIABLES
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_every_setting_can_be_set() -> None:
    assert {variable.field for variable in VARIABLES} == set(Settings.__struct_fields__) - {"providers"}


def test_every_error_is_documented() -> None:
    page = _page("errors.md")
    classes = [name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert len(classes) > 20
    assert [name for name in classes if not re.search(rf"\b{name}\b", page)] == []


def test_every_route_is_documented() -> None:
    page = _page("routes.md")
    built = {route.path for route in _built() if route.include_in_schema}
    missing = {operation for family in UNBUILT for operation in family.operations} | REFUSED.keys()
    assert {name for name in built | missing if f"`{name}`" not in page} == set()


def test_no_operation_is_both_built_and_listed_as_missing() -> None:
    built = {f"{method} {route.path}" for route in _built() for method in route.methods or ()}
    missing = {operation for family in UNBUILT for operation in family.operations}
    assert {_bare(operation) for operation in built} & {_bare(operation) for operation in missing} == set()


def test_every_decision_is_numbered_in_order_and_listed() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    index = _page("decisions/README.md")
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert [page.name for page in pages if f"]({page.name})" not in index] == []
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {int(page.name[:4])}. ")
        assert [part for part in ("**Context.**", "**Decision.**", "**Consequences.**") if part not in text] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    reached = {ROOT / "docs" / "index.md"}
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        new = {page.parent.joinpath(link).resolve() for link in _links(page.read_text())} - reached
        reached |= new
        waiting += [path for path in new if path.suffix == ".md" and path.is_file()]
    assert [page for page in (ROOT / "docs").rglob("*.md") if page not in reached] == []


@pytest.mark.parametrize("name", sorted(str(path.relative_to(ROOT)) for path in PAGES))
def test_links_between_pages_lead_somewhere(name: str) -> None:
    page = ROOT / name
    assert [link for link in _links(page.read_text()) if not page.parent.joinpath(link).exists()] == []


def test_the_makefile_says_what_each_of_its_targets_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]
    assert [name for name in phony if not re.search(rf"^{name}:.*## \w", makefile, re.MULTILINE)] == []


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _built() -> list[APIRoute]:
    return [route for router in ROUTERS for route in built(router.routes) if isinstance(route, APIRoute)]


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def _bare(operation: str) -> str:
    """Without the names of what is in braces, and without a last slash: what a request could not tell apart."""
    return re.sub(r"\{[^}]*\}", "{}", operation).rstrip("/")


def _links(text: str) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL))
    return [target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
