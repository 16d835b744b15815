"""Container files cannot be built in tests: what they name is held against what there is."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from typing import Any

import pytest
import yaml

from holdfast.api.framework.routing import built
from holdfast.api.routes import health
from holdfast.cli import build_parser
from holdfast.settings import Settings
from holdfast.variables import VARIABLES

from .sources import ROOT

_yaml: Any = yaml  # which schemathesis brings along
SETTINGS = {name for variable in VARIABLES for name in variable.names}
SECRET = re.compile(r"KEY|PASSWORD|SECRET|TOKEN")
INSTRUCTIONS = {
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "RUN",
    "USER",
    "VOLUME",
    "WORKDIR",
}


@cache
def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, in order, each as one line."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line]


@cache
def compose() -> dict[str, Any]:
    return _yaml.safe_load((ROOT / "compose.yaml").read_text())


def said(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def ours() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services().items() if "build" in service}


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in said("ENV") for pair in line.split())


def test_the_dockerfile_is_made_of_instructions() -> None:
    assert {name for name, _ in instructions()} == INSTRUCTIONS
    assert instructions()[0][0] == "FROM"


def test_images_have_a_version() -> None:
    images = [*said("FROM"), *(service["image"] for service in services().values())]
    assert [image for image in images if not re.fullmatch(r"[a-z/]+:\d+(\.\d+)*(-[a-z]+)*", image)] == []
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {service["image"] for service in ours().values()} == {f"holdfast:{version}"}


def test_the_image_does_not_run_as_root() -> None:
    names = [name for name, _ in instructions()]
    assert said("USER") == ["holdfast"]
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN")
    assert [name for name, service in services().items() if "user" in service or service.get("privileged")] == []
    assert any("useradd --uid 10001" in line and line.endswith("/data") for line in said("RUN"))


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in said("COPY"):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored
    assert "*" in ignored, "nothing else gets into the image"


def test_every_setting_that_is_named_exists_and_can_be_read() -> None:
    named = set(environment())
    for service in ours().values():
        named |= set(service["environment"])
    text = (ROOT / "Dockerfile").read_text() + (ROOT / "compose.yaml").read_text()
    assert named | set(re.findall(r"\b(?:HOLDFAST|LETTA)_[A-Z_]+\b", text)) <= SETTINGS
    read = Settings.from_environment(environment() | {"HOLDFAST_API_KEY": "k"})
    assert str(read.data_dir) == said("VOLUME")[0]
    assert str(read.port) == said("EXPOSE")[0]
    read.require_safe_binding()


def test_every_command_exists() -> None:
    parser, commands = build_parser()
    assert json.loads(said("ENTRYPOINT")[0]) == ["holdfast"]
    for given in [json.loads(said("CMD")[0]), *(each["command"] for each in ours().values() if "command" in each)]:
        assert parser.parse_args(given).command in commands


def test_the_health_check_asks_a_route_that_exists() -> None:
    (check,) = said("HEALTHCHECK")
    asked = re.findall(r"'GET', '([^']+)'", check)
    paths = {getattr(route, "path", None) for route in built(health.router.routes)}
    assert asked
    assert set(asked) <= paths
    compile(json.loads(check[check.index("[") :])[-1], "HEALTHCHECK", "exec")


def test_no_secret_is_written_down() -> None:
    assert [name for name in environment() if SECRET.search(name)] == []
    for service in services().values():
        for name, value in service["environment"].items():
            if SECRET.search(name):
                assert re.fullmatch(r"\$\{[A-Z_]+:[-?][a-z ]*\}", value)
            assert not re.search(r"://[^$@]*:[^$@]+@", value)


def test_by_default_there_is_one_server_with_sqlite_and_by_profile_two_with_a_worker() -> None:
    default = {name: service for name, service in services().items() if "profiles" not in service}
    assert list(default) == ["server"]
    assert "HOLDFAST_DATABASE_URL" not in default["server"]["environment"]
    profiled = {name for name, service in services().items() if service.get("profiles") == ["postgres"]}
    assert profiled == {"server-1", "server-2", "worker", "database"}
    for name in profiled - {"database"}:
        assert services()[name]["environment"]["HOLDFAST_DATABASE_URL"].startswith("postgresql://")
        assert services()[name]["volumes"] == ["shared:/data"], "they open each other's secrets"
    assert services()["worker"]["command"] == ["worker", "--port", "8283"], "where the image looks whether it is alive"
    assert services()["worker"]["ports"] == []


def test_ports_are_open_to_this_machine_only_and_none_twice() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:8283", port)] == []
    assert len(set(ports)) == len(ports) == 3


def test_volumes_are_declared() -> None:
    used = {volume.partition(":")[0] for service in services().values() for volume in service["volumes"]}
    assert used == set(compose()["volumes"])


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", ".dockerignore"])
def test_lines_end_as_lines(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text.endswith("\n")
    assert [line for line in text.splitlines() if line != line.rstrip() or "\t" in line] == []
