from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from holdfast.cli import _MEANT, _NEXT, build_parser, main

RUN = "run-123e4567-e89b-42d3-8456-426614174000"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    for name in ("HOLDFAST_URL", "HOLDFAST_API_KEY", "LETTA_SERVER_PASSWORD", "LETTA_API_KEY", "HOLDFAST_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(tmp_path))


@contextmanager
def answering(answers: dict[str, tuple[int, object]]) -> Generator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that knows a few paths, and what it was asked: path and authorization."""
    asked: list[tuple[str, str | None]] = []

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["authorization"]))
            status, body = answers.get(self.path.partition("?")[0], (404, {"detail": "Not there."}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_help_loads_neither_the_server_nor_its_libraries() -> None:
    code = "import sys, holdfast.cli as c; c.build_parser(); print([m for m in sys.modules if m in %r])"
    heavy = ("fastapi", "sqlalchemy", "aiohttp", "pydantic", "uvicorn", "holdfast.settings")
    shown = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_runs_are_listed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": RUN, "status": "completed", "stop_reason": "end_turn", "agent_id": None, "created_at": "2025-01-01"}
    with answering({"/v1/runs/": (200, [row])}) as (url, asked):
        assert main(["runs", "--url", url, "--limit", "3"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["RUN", "STATUS", "STOPPED", "AGENT", "STARTED"]
    assert line.split() == [RUN, "completed", "end_turn", "-", "2025-01-01"]
    assert asked == [("/v1/runs/?limit=3&order=desc", None)]


def test_the_key_is_sent_along(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", "k")
    with answering({"/v1/runs/": (200, [])}) as (url, asked):
        assert main(["runs", "--url", url]) == 0
    assert asked[0][1] == "Bearer k"
    assert "no runs yet" in capsys.readouterr().out


def test_no_proxy_stands_between_a_command_and_this_machine() -> None:
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9")
    apart = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"} | proxies
    with answering({"/v1/runs/": (200, [])}) as (url, asked):  # a process of its own: proxies are looked up only once
        command = [sys.executable, "-m", "holdfast", "runs", "--url", url]
        shown = subprocess.run(command, env=apart, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr, len(asked)) == (0, "", 1)


def test_json_is_the_server_s_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"run_id": RUN, "summary": "It waits.", "history": ["It asked."]}
    with answering({f"/v1/runs/{RUN}/why": (200, answer)}) as (url, _):
        assert main(["why", RUN, "--json", "--url", url]) == 0
        assert json.loads(capsys.readouterr().out) == answer
        assert main(["why", RUN, "--url", url]) == 0
    assert capsys.readouterr().out == "It waits.\n  It asked.\n"


def test_waiting_calls_are_shown_with_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    call = {"tool_call_id": "c1", "name": "wipe", "arguments": '{"disk": "sda"}'}
    waiting = {"run_id": RUN, "agent_id": "agent-1", "asked_at": "2025-01-01", "tool_calls": [call]}
    with answering({"/v1/approvals/": (200, [waiting])}) as (url, _):
        assert main(["approvals", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert RUN in shown
    assert 'wipe {"disk": "sda"}' in shown


def test_secrets_that_were_changed_since_a_call_was_asked_for_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"run_id": RUN, "agent_id": "agent-1", "tool_calls": [], "changed_secrets": ["TARGET", "TOKEN"]}
    with answering({"/v1/approvals/": (200, [waiting])}) as (url, _):
        assert main(["approvals", "--url", url]) == 0
    assert "secrets changed since it was asked: TARGET, TOKEN" in capsys.readouterr().out


MODELS = [
    {
        "handle": "openai/gpt-4o",
        "max_context_window": 128000,
        "abilities": {"tools": True, "images": True, "reasoning": False, "strict_tools": True},
        "price": {"input": 2.5, "output": 10, "cached_input": 1.25, "cache_write": None},
    },
    {"handle": "ollama/mine", "max_context_window": 8192, "abilities": {"tools": True}, "price": None},
]
PROVIDERS = [
    {"name": "openai", "status": "ok", "since": "2025-01-01", "problem": None},
    {"name": "groq", "status": "failed", "since": "2025-01-02", "problem": "Authentication failed with groq: no"},
    {"name": "bedrock", "status": "unlistable", "since": None, "problem": None},
    {"name": "cohere", "status": "ok", "since": "2025-01-01", "problem": "Models of cohere need an extra"},
]


def test_models_are_listed_with_their_prices_and_the_providers_that_could_not_be_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering({"/v1/models/": (200, MODELS), "/v1/models/providers": (200, PROVIDERS)}) as (url, _):
        assert main(["models", "--url", url]) == 0
    heading, first, second, _, failed, unlistable, missing = capsys.readouterr().out.splitlines()
    assert heading.split() == ["HANDLE", "WINDOW", "ABILITIES", "PRICE"]
    assert first.split("  ") == ["openai/gpt-4o", "128,000", "tools, images, strict tools", "$2.5 / $10"]
    assert [cell for cell in second.split("  ") if cell.strip()][-1].strip() == "-"
    assert failed == "groq has not listed its models since 2025-01-02: Authentication failed with groq: no"
    assert "bedrock cannot list its models" in unlistable
    assert missing == "Models of cohere need an extra"


def test_a_provider_that_lists_nothing_to_use_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    idle = {"name": "ollama", "status": "ok", "since": "2025-01-01", "problem": None, "models": 0}
    with answering({"/v1/models/": (200, MODELS), "/v1/models/providers": (200, [idle])}) as (url, _):
        assert main(["models", "--url", url]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ollama lists no model that can call tools."


def test_models_of_one_provider_are_asked_for_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, tuple[int, object]] = {"/v1/models/": (200, []), "/v1/models/providers": (200, PROVIDERS)}
    with answering(answers) as (url, asked):
        assert main(["models", "--provider", "groq", "--url", url]) == 0
        shown = capsys.readouterr().out
        assert main(["models", "--provider", "groq", "--json", "--url", url]) == 0
    assert "No provider called groq lists any model." in shown
    assert "no" in shown
    assert "bedrock" not in shown
    assert asked[0][0] == "/v1/models/?provider_name=groq"
    assert json.loads(capsys.readouterr().out) == {"models": [], "providers": [PROVIDERS[1]]}


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [(401, {"detail": "Unauthorized"}, "HOLDFAST_API_KEY"), (503, {"detail": "The server stops"}, "The server stops")],
)
def test_a_refusal_is_one_sentence_and_exit_2(
    capsys: pytest.CaptureFixture[str], status: int, body: object, sentence: str
) -> None:
    with answering({f"/v1/runs/{RUN}/why": (status, body)}) as (url, _):
        assert main(["why", RUN, "--url", url]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("command", [["why"], ["runs", "show"], ["runs", "cancel"]])
def test_a_run_that_is_not_there_is_named_with_what_lists_those_that_are(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    unknown = (404, {"detail": "Run not found"})
    with answering({"/v1/runs/nonsense": unknown, "/v1/runs/nonsense/why": unknown}) as (url, _):
        assert main([*command, "nonsense", "--url", url]) == 2
    assert capsys.readouterr().err == "holdfast: Run not found: nonsense. Those that are there: holdfast runs\n"


def test_a_server_that_is_not_there_is_one_sentence_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    with answering({}) as (url, _):
        pass
    assert main(["runs", "--url", url]) == 2
    assert "holdfast serve" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["file:///etc/passwd", "localhost"])
def test_only_http_addresses_are_asked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--url", url]) == 2
    assert "http://" in capsys.readouterr().err


def test_migrate_makes_the_database_and_may_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--data-dir", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "holdfast.db").exists()
    assert main(["migrate", "--data-dir", str(tmp_path / "new")]) == 0
    assert "up to date" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out[0].isdigit()


def test_without_a_command_it_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    for words in ("holdfast serve", "http://127.0.0.1:8283", "OPENAI_API_KEY", "holdfast --help"):
        assert words in shown.out
    assert shown.err == ""


def test_what_is_suggested_exists() -> None:
    _, commands = build_parser()
    assert set(_MEANT.values()) <= set(commands)
    assert not set(_MEANT) & set(commands)
    named = re.findall(r"holdfast ([a-z]+(?: \| [a-z]+)*)", _NEXT)
    assert {name for names in named for name in names.split(" | ")} <= set(commands)


def test_the_version_can_be_asked_for_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out[0].isdigit()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["srve"], "there is no command 'srve'. Did you mean `holdfast serve`?"),
        (["start", "--port", "1"], "Did you mean `holdfast serve`?"),
        (["model"], "Did you mean `holdfast models`?"),
        (["xyzzy"], f"There are: {', '.join(build_parser()[1])}."),
        ([""], "There are: serve,"),
        (["--"], "holdfast: "),  # what is wrong with it depends on the version of Python
        (["--wat"], "unrecognized arguments: --wat"),
        (["serve", "--wat"], "unrecognized arguments: --wat"),
        (["why"], "the following arguments are required: RUN"),
        (["runs", "--limit", "many"], "invalid int value: 'many'"),
    ],
)
def test_a_wrong_command_line_gets_a_sentence_and_the_way_to_help(
    given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.splitlines()[-1].startswith("What there is: holdfast")
    assert shown.err.endswith("--help\n")
    assert shown.out == ""


@pytest.mark.parametrize(("given", "words"), [(["help"], "COMMAND"), (["help", "serve"], "--port"), (["-h"], "serve")])
def test_help_is_also_a_word(given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 0
    assert words in capsys.readouterr().out
