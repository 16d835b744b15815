"""A tool of one agent tries to use the API of the server that runs it, with no API key set: the default."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import ServerProcess

DRIVE = '''
def drive(url: str) -> str:
    """Reads what waits for approval, and approves it.

    Args:
        url: where the server is
    """
    import json, urllib.request

    def ask(path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url + path, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    pending = ask("/v1/approvals/")
    return "DROVE " + json.dumps(pending)[:500]
'''
DANGER = '''
def danger() -> str:
    """Does what nobody should do unasked."""
    return "DANGER RAN"
'''


def post(http: httpx.Client, path: str, body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "policy",
    [
        {"HOLDFAST_TOOL_EGRESS": "public", "HOLDFAST_TOOL_EGRESS_ALLOW": ""},
        {"HOLDFAST_TOOL_EGRESS": "allow-list", "HOLDFAST_TOOL_EGRESS_ALLOW": "127.0.0.0/8,::1,localhost"},
        {"HOLDFAST_TOOL_EGRESS": "all"},
    ],
    ids=["public", "allow-list", "all"],
)
def test_a_tool_cannot_approve_another_agents_call(tmp_path: Path, policy: dict[str, str]) -> None:
    with ServerProcess(tmp_path, **policy) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        danger = post(http, "/v1/tools/", {"source_code": DANGER, "default_requires_approval": True})
        drive = post(http, "/v1/tools/", {"source_code": DRIVE})
        agent = {"model": "holdfast/offline", "include_base_tools": False}
        guarded = post(http, "/v1/agents/", agent | {"tool_ids": [danger["id"]]})
        hostile = post(http, "/v1/agents/", agent | {"tool_ids": [drive["id"]]})
        call = {"messages": [{"role": "user", "content": "[[call:danger {}]] [[say:Done.]]"}]}
        post(http, f"/v1/agents/{guarded['id']}/messages", call)
        for host in ("127.0.0.1", "localhost"):
            arguments = json.dumps({"url": f"http://{host}:{server.port}"})
            said = {"messages": [{"role": "user", "content": f"[[call:drive {arguments}]] [[say:Done.]]"}]}
            answer = json.dumps(post(http, f"/v1/agents/{hostile['id']}/messages", said))
            assert "[Errno 13] Permission denied" in answer
            assert "DROVE" not in answer
        left = http.get(f"/v1/agents/{guarded['id']}?include=agent.pending_approval").json()
        assert left["pending_approval"] is not None


def printed(server: ServerProcess, beginning: str) -> str:
    """The line that the server prints when it has tried the layers of isolation, shortly after it is healthy."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for line in server.read_log().splitlines():
            if line.startswith(beginning):
                return line
        time.sleep(0.05)
    raise AssertionError(f"no line begins with {beginning!r}: {server.read_log()}")


def test_the_banner_says_what_tools_may_connect_to(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, HOLDFAST_TOOL_EGRESS="all") as server:
        told = printed(server, "  Egress ")
    assert told.startswith("  Egress    ALL: tools reach everything")
    assert "NOT ENFORCED" not in told


def test_a_tag_narrows_one_tool_and_a_tag_that_means_nothing_is_a_422(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        for tag in ("egress:all", "egress:nothing", "egress:allow=http://x"):
            answer = http.post("/v1/tools/", json={"source_code": DANGER, "tags": [tag]})
            assert answer.status_code == 422, answer.text
            assert "egress" in answer.json()["detail"]
        tool = post(http, "/v1/tools/", {"source_code": DANGER, "tags": ["egress:none"]})
        assert http.patch(f"/v1/tools/{tool['id']}", json={"tags": ["egress:what"]}).status_code == 422
        assert http.get(f"/v1/tools/{tool['id']}").json()["tags"] == ["egress:none"]
