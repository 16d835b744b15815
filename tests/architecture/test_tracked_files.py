from __future__ import annotations

import re
import tomllib

from .sources import ROOT, tracked_files

# Spelt so that this file does not hold what it looks for.
MACHINE_PATHS = re.compile(r"/(?:root|home/[a-z]+|Users/[A-Za-z]+|work/(?:main|shared))/")
REGISTRY_HOSTS = re.compile(
    r"pypi\.(?:org|python)|pythonhosted\.org|registry\.(?:npm|yarn)\w*\.\w+|/artifactory/|nexus\."
)
PRIVATE_KEYS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:sk|ghp|xox[bp])-[A-Za-z0-9]{20,}")
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".js", ".mjs", ".css", ".html", ".yml", ".yaml", ".mako", ".sh", ""}


def test_no_file_names_a_directory_of_one_machine() -> None:
    assert not _files_holding(MACHINE_PATHS)


def test_no_file_names_a_package_registry() -> None:
    assert not _files_holding(REGISTRY_HOSTS)


def test_no_file_holds_a_secret() -> None:
    assert not _files_holding(PRIVATE_KEYS)


def test_constraints_pin_exact_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines == sorted(lines, key=lambda line: line.partition("=")[0])
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {_name(requirement) for requirement in wanted} - pinned == set()


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9-]+", requirement)
    assert match
    return match[0]


def _files_holding(pattern: re.Pattern[str]) -> list[str]:
    texts = [
        path
        for path in tracked_files()
        if path.suffix in TEXT and path.name not in ("LICENSE", "test_tracked_files.py")
    ]
    assert len(texts) > 50
    return [str(path.relative_to(ROOT)) for path in texts if pattern.search(path.read_text())]
