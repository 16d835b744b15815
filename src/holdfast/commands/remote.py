"""Commands that list, show and change what a running server has."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from holdfast.commands.printing import print_json, styled, text_table
from holdfast.commands.server_api import ServerApi, quoted
from holdfast.errors import ConfigError, NotFound

_MODEL_HEADINGS: Final = ("HANDLE", "WINDOW", "ABILITIES", "PRICE")
_STATUS_STYLES: Final = {"failed": "red", "completed": "green", "running": "yellow", "created": "yellow"}
Record = dict[str, Any]


def why(arguments: argparse.Namespace) -> int:
    """Where a run stands, in words: what it does or waits for, or how it ended."""
    with _naming_the_run(arguments):
        answer: Record = ServerApi(arguments).get(f"/v1/runs/{quoted(arguments.run)}/why")
    if arguments.json:
        print_json(answer)
        return 0
    history: list[str] = answer.get("history", [])
    print("\n  ".join([str(answer["summary"]), *history]))
    return 0


def runs(arguments: argparse.Namespace) -> int:
    """The latest runs, newest first, or one of them."""
    match arguments.action:
        case "show":
            with _naming_the_run(arguments):
                return _show(arguments, f"/v1/runs/{quoted(arguments.run)}")
        case "why":
            return why(arguments)
        case "watch":
            with _naming_the_run(arguments):
                return _watch(arguments)
        case "cancel":
            with _naming_the_run(arguments):
                return _cancel(arguments)
        case _:
            return _list_runs(arguments)


@contextmanager
def _naming_the_run(arguments: argparse.Namespace) -> Generator[None]:
    """The server says only that it is not found."""
    try:
        yield
    except NotFound as error:
        sentence = f"{error.message}: {arguments.run}. Those that are there: holdfast runs"
        raise NotFound(sentence) from error


def _list_runs(arguments: argparse.Namespace) -> int:
    api = ServerApi(arguments)
    agent = None if arguments.agent is None else find_agent(api, arguments.agent)["id"]
    wanted = {"limit": arguments.limit, "order": "desc", "agent_id": agent, "statuses": arguments.status}
    found: list[Record] = api.get("/v1/runs/", **wanted)
    if arguments.json:
        print_json(found)
    elif not found:
        print("There are no runs yet.")
    else:
        columns = ("id", "status", "stop_reason", "agent_id", "created_at")
        headings = ("RUN", "STATUS", "STOPPED", "AGENT", "STARTED")
        print(text_table(headings, ([row.get(name) for name in columns] for row in found)))
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    """The events of a background run, from the first, until it ends."""
    api = ServerApi(arguments)
    for event in api.stream(f"/v1/runs/{quoted(arguments.run)}/stream", {"starting_after": 0}):
        if arguments.json:
            print_json(event)
        else:
            kind = event.get("message_type", "event")
            shown = next(
                (
                    event[key]
                    for key in ("content", "reasoning", "tool_call", "tool_return", "stop_reason")
                    if event.get(key)
                ),
                "",
            )
            print(f"{event.get('seq_id') or '':>6}  {styled(str(kind), 'dim')}  {shown}", flush=True)
    return 0


def _cancel(arguments: argparse.Namespace) -> int:
    api = ServerApi(arguments)
    run: Record = api.get(f"/v1/runs/{quoted(arguments.run)}")
    answer: Record = api.post(f"/v1/agents/{run['agent_id']}/messages/cancel", {"run_ids": [run["id"]]})
    if arguments.json:
        print_json(answer)
        return 0
    status = str(answer.get(run["id"], "unknown"))
    print(f"Run {run['id']}: {styled(status, _STATUS_STYLES.get(status, 'dim'))}")
    return 0 if status == "cancelled" else 1


def approvals(arguments: argparse.Namespace) -> int:
    """The calls that wait for a person: what would be run, with which arguments, for which agent; or a decision."""
    api = ServerApi(arguments)
    found: list[Record] = api.get("/v1/approvals/")
    if arguments.action in ("approve", "deny"):
        return _decide(api, found, arguments)
    if arguments.json:
        print_json(found)
    elif not found:
        print("Nothing waits for a decision.")
    else:
        print("\n\n".join(_waiting_lines(waiting) for waiting in found))
    return 0


def _decide(api: ServerApi, found: list[Record], arguments: argparse.Namespace) -> int:
    """By the id of the run that waits, or of one of its calls. All calls of a run are decided together."""
    chosen = [
        one for one in found if arguments.run in (one["run_id"], *(call["tool_call_id"] for call in one["tool_calls"]))
    ]
    if not chosen:
        raise NotFound(f"Nothing waits for a decision under {arguments.run}. What does: holdfast approvals")
    [waiting] = chosen
    approve = arguments.action == "approve"
    decisions = [
        {
            "type": "approval",
            "tool_call_id": call["tool_call_id"],
            "approve": approve,
            "reason": getattr(arguments, "reason", None),
        }
        for call in waiting["tool_calls"]
    ]
    body = {"messages": [{"type": "approval", "approvals": decisions}], "background": True}
    place = (
        f"/v1/conversations/{waiting['conversation_id']}/messages"
        if waiting.get("conversation_id")
        else f"/v1/agents/{waiting['agent_id']}/messages/stream"
    )
    run_id = None
    for event in api.stream(place, {**body, "streaming": True}):
        run_id = run_id or event.get("run_id")
    if arguments.json:
        print_json({"decided": waiting["run_id"], "approve": approve, "run_id": run_id})
    else:
        print(
            f"{'Approved' if approve else 'Denied'}. Run {run_id} carried on; `holdfast why {run_id}` says what it did."
        )
    return 0


def _waiting_lines(waiting: Record) -> str:
    lines = [f"{waiting.get('agent_id')}, run {waiting.get('run_id')}, asked {waiting.get('asked_at')}"]
    calls: list[Record] = waiting.get("tool_calls", [])
    lines += [f"  {call.get('name')} {call.get('arguments')}  ({call.get('tool_call_id')})" for call in calls]
    if changed := waiting.get("changed_secrets"):
        lines.append(f"  secrets changed since it was asked: {', '.join(changed)}")
    return "\n".join(lines)


def agents(arguments: argparse.Namespace) -> int:
    api = ServerApi(arguments)
    if arguments.action == "show":
        return _shown(find_agent(api, arguments.agent), arguments)
    if arguments.action == "delete":
        agent = find_agent(api, arguments.agent)
        api.delete(f"/v1/agents/{agent['id']}")
        print(f"Deleted {agent['name']} ({agent['id']}).")
        return 0
    found: list[Record] = api.get("/v1/agents/", limit=arguments.limit, order="desc")
    if arguments.json:
        print_json(found)
    elif not found:
        print("There are no agents yet. `holdfast chat` makes one.")
    else:
        columns = ("id", "name", "model", "last_stop_reason", "created_at")
        print(
            text_table(
                ("AGENT", "NAME", "MODEL", "STOPPED", "CREATED"), ([row.get(name) for name in columns] for row in found)
            )
        )
    return 0


def find_agent(api: ServerApi, given: str) -> Record:
    """By its id, or by a name that only one agent has."""
    if given.startswith("agent-"):
        return api.get(f"/v1/agents/{quoted(given)}")
    found: list[Record] = api.get("/v1/agents/", name=given, limit=2)
    if not found:
        raise NotFound(f"There is no agent called {given!r}. Those that are there: holdfast agents")
    if len(found) > 1:
        raise ConfigError(f"Several agents are called {given!r}: use an id. `holdfast agents` shows them.")
    return found[0]


def tools(arguments: argparse.Namespace) -> int:
    api = ServerApi(arguments)
    if arguments.action == "show":
        found: list[Record] = api.get("/v1/tools/", name=arguments.tool)
        if not found:
            raise NotFound(f"There is no tool called {arguments.tool!r}. Those that are there: holdfast tools")
        return _shown(found[0], arguments)
    found = api.get("/v1/tools/", limit=arguments.limit)
    if arguments.json:
        print_json(found)
    else:
        rows = (
            [row["name"], row["tool_type"], "yes" if row.get("default_requires_approval") else None, _first_line(row)]
            for row in found
        )
        print(text_table(("TOOL", "TYPE", "APPROVAL", "DESCRIPTION"), rows))
    return 0


def _first_line(tool: Record) -> str:
    return (tool.get("description") or "").strip().partition("\n")[0][:80]


def _show(arguments: argparse.Namespace, path: str) -> int:
    return _shown(ServerApi(arguments).get(path), arguments)


def _shown(record: Record, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(record)
        return 0
    simple = {name: value for name, value in record.items() if value is not None and not isinstance(value, dict | list)}
    width = max(map(len, simple))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in simple.items()))
    return 0


def models(arguments: argparse.Namespace) -> int:
    """The models that the server can use, and for every provider that could not be asked, since when and why."""
    api = ServerApi(arguments)
    found: list[Record] = api.get("/v1/models/", provider_name=arguments.provider)
    providers: list[Record] = api.get("/v1/models/providers")
    asked = [one for one in providers if arguments.provider in (None, one.get("name"))]
    if arguments.json:
        print_json({"models": found, "providers": asked})
        return 0
    if found:
        print(text_table(_MODEL_HEADINGS, (_model_cells(model) for model in found)))
    else:
        print(f"No provider called {arguments.provider} lists any model." if arguments.provider else "No models.")
    if sentences := [sentence for provider in asked if (sentence := _provider_sentence(provider))]:
        print("\n" + "\n".join(sentences))
    return 0


def _model_cells(model: Record) -> list[object]:
    able: dict[str, bool] = model.get("abilities") or {}
    names = [name.replace("_", " ") for name, can in able.items() if can]
    return [model.get("handle"), f"{model.get('max_context_window') or 0:,}", ", ".join(names), _price(model)]


def _price(model: Record) -> str | None:
    """US dollars for a million tokens, in and out."""
    price: dict[str, float] | None = model.get("price")
    return None if price is None else f"${price['input']:g} / ${price['output']:g}"


def _provider_sentence(provider: Record) -> str | None:
    match provider.get("status"):
        case "ok" | "unlistable" | "not_asked" if provider.get("problem"):
            return str(provider["problem"])
        case "ok" if provider.get("models") == 0:
            return f"{provider.get('name')} lists no model that can call tools."
        case "failed":
            return f"{provider.get('name')} has not listed its models since {provider.get('since')}: " + str(
                provider.get("problem")
            )
        case "unlistable":
            return f"{provider.get('name')} cannot list its models: write their names after {provider.get('name')}/."
        case _:
            return None
