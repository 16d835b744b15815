"""`holdfast chat`: talk to an agent in a terminal. Words come as they are written; calls are approved or denied in
place; Ctrl-C cancels the run, and a second one leaves.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, cast

from holdfast import ids
from holdfast.commands.printing import is_terminal, printable, styled
from holdfast.commands.remote import find_agent
from holdfast.commands.server_api import ConnectionLost, Refusal, ServerApi, Unreachable
from holdfast.errors import HoldfastError

_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
_HELP: Final = (
    "/new starts another conversation, /agent names the agent, /quit leaves; Ctrl-C cancels a run, twice leaves."
)
Event = dict[str, Any]


def run(arguments: argparse.Namespace) -> int:
    api = ServerApi(arguments)
    agent = _agent(api, arguments.agent)
    chat = Chat(api, agent["id"], arguments.conversation)
    if arguments.message is not None:
        return chat.turn(_user(arguments.message))
    if not is_terminal(sys.stdin):
        return chat.turn(_user(sys.stdin.read()))
    print(styled(f"{agent['name']} ({agent['model']}). {_HELP}", "dim"))
    return _converse(chat, agent)


def _agent(api: ServerApi, given: str | None) -> Event:
    """The one that is named, else the newest; where there is none, a new one."""
    if given is not None:
        return find_agent(api, given)
    newest: list[Event] = api.get("/v1/agents/", limit=1, order="desc")
    if newest:
        return newest[0]
    blocks = [{"label": "human", "value": ""}, {"label": "persona", "value": ""}]
    return api.post("/v1/agents/", {"name": "assistant", "memory_blocks": blocks})


def _converse(chat: Chat, agent: Event) -> int:
    warned = False
    while True:
        try:
            text = _read_line(styled("> ", "cyan")).strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            if warned:
                print()
                return 130
            print(styled("\nCtrl-C again leaves.", "dim"))
            warned = True
            continue
        warned = False
        match text:
            case "":
                continue
            case "/quit" | "/exit":
                return 0
            case "/help":
                print(styled(_HELP, "dim"))
            case "/agent":
                print(f"{agent['name']}  {agent['id']}")
            case "/new":
                chat.start_conversation()
            case _:
                chat.turn_or_tell(_user(text))


def _user(text: str) -> Event:
    return {"role": "user", "content": text, "otid": ids.new("message").partition("-")[2]}


class Chat:
    def __init__(self, api: ServerApi, agent_id: str, conversation: str | None) -> None:
        self._api = api
        self._agent_id = agent_id
        self._conversation = conversation

    def start_conversation(self) -> None:
        made = self._api.post("/v1/conversations/", agent_id=self._agent_id)
        self._conversation = made["id"]
        print(styled(f"A new conversation: {made['id']}", "dim"))

    def turn_or_tell(self, message: Event) -> None:
        """A turn that fails does not end the chat."""
        try:
            self.turn(message)
        except (Refusal, Unreachable) as error:
            print(styled(f"holdfast: {error}", "red", sys.stderr), file=sys.stderr)

    def turn(self, message: Event) -> int:
        """The message, and every decision that it leads to."""
        while True:
            view = _View()
            with _cancelling(partial(self._cancel, view)):
                for event in self._events(message, view):
                    view.show(event)
            view.finish()
            if view.stop_reason != "requires_approval":
                return 0 if view.stop_reason in ("end_turn", "tool_rule", "cancelled", "max_steps") else 1
            message = self._decided(view)

    def _events(self, message: Event, view: _View) -> Iterator[Event]:
        """Of the whole run: a stream that is lost is joined again after the last event that was seen."""
        body = {"messages": [message], "stream_tokens": True, "background": True, "include_pings": True}
        place = (
            f"/v1/conversations/{self._conversation}/messages"
            if self._conversation
            else f"/v1/agents/{self._agent_id}/messages/stream"
        )
        source: Generator[Event] = self._api.stream(place, {**body, "streaming": True})
        for pause_s in (*_PAUSES_S, None):
            try:
                yield from source
                return
            except (ConnectionLost, Unreachable) as error:
                if view.run_id is None or pause_s is None:
                    raise
                print(styled(f"\n{error} Joining again …", "dim"), flush=True)
                time.sleep(pause_s)
            source = self._api.stream(f"/v1/runs/{view.run_id}/stream", {"starting_after": view.last_seq})

    def _cancel(self, view: _View) -> None:
        """Also before the run's id is known: then what the thread is doing is cancelled."""
        if self._conversation:
            self._api.post(f"/v1/conversations/{self._conversation}/cancel")
        else:
            self._api.post(
                f"/v1/agents/{self._agent_id}/messages/cancel", {"run_ids": [view.run_id]} if view.run_id else {}
            )

    def _decided(self, view: _View) -> Event:
        waiting = [one for one in self._api.get("/v1/approvals/") if one["run_id"] == view.run_id]
        calls: list[Event] = waiting[0]["tool_calls"] if waiting else []
        if not is_terminal(sys.stdin):
            names = ", ".join(call["name"] for call in calls)
            raise Refusal(f"{names} waits for approval: holdfast approvals approve {view.run_id}")
        decisions: list[Event] = []
        for call in calls:
            question = f"Run {call['name']} {printable(call['arguments'])}? [y/N, or why not] "
            answer = _read_line(styled(question, "yellow")).strip()
            approve = answer.lower() in ("y", "yes")
            reason = None if approve or answer.lower() in ("", "n", "no") else answer
            decisions.append(
                {"type": "approval", "tool_call_id": call["tool_call_id"], "approve": approve, "reason": reason}
            )
        return {"type": "approval", "approvals": decisions}


class _View:
    """Prints the events of one run as they come."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        self.last_seq = 0
        self.stop_reason: str | None = None
        self._open: str | None = None  # the kind of what is being written on this line

    def show(self, event: Event) -> None:
        self.run_id = self.run_id or event.get("run_id")
        self.last_seq = event.get("seq_id") or self.last_seq
        match event.get("message_type"):
            case "assistant_message":
                self._write("assistant", _text(event.get("content")))
            case "reasoning_message":
                self._write("reasoning", event.get("reasoning") or "", "dim")
            case "tool_call_message" | "approval_request_message":
                call: Event = event.get("tool_call") or {}
                name = f"{call['name']} " if call.get("name") else ""
                self._write(f"call {call.get('tool_call_id')}", name + (call.get("arguments") or ""), "cyan")
            case "tool_return_message":
                good = event.get("status") == "success"
                self._write(
                    "return", f"→ {_text(event.get('tool_return'))[:2000]}", "green" if good else "red", whole=True
                )
            case "error_message" | "error":
                self._write("error", str(event.get("message") or event.get("detail") or event), "red", whole=True)
            case "stop_reason":
                self.stop_reason = event.get("stop_reason")
            case _:
                pass

    def _write(self, kind: str, text: str, style: str | None = None, *, whole: bool = False) -> None:
        if self._open not in (None, kind) or (whole and self._open is not None):
            print()
        self._open = kind
        shown = printable(text)
        print(styled(shown, style) if style else shown, end="", flush=True)

    def finish(self) -> None:
        if self._open is not None:
            print()
        if self.stop_reason not in ("end_turn", "tool_rule", "requires_approval", None):
            print(styled(f"[{self.stop_reason}] holdfast why {self.run_id}", "dim"))


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = cast("list[Event]", content)
        return "\n".join(part.get("text", "") for part in parts)
    return "" if content is None else str(content)


@contextmanager
def _cancelling(cancel: Callable[[], None]) -> Generator[None]:
    """Ctrl-C asks the server to cancel, in a thread, so that the stream is read to its end; a second one leaves."""
    asked = False

    def ask() -> None:
        try:
            cancel()
        except HoldfastError as error:  # it may just have ended
            print(styled(f"\n{error}", "dim", sys.stderr), file=sys.stderr)

    def interrupted(_: int, __: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        os.write(sys.stdout.fileno(), b"\nCancelling ... (Ctrl-C again leaves)\n")
        threading.Thread(target=ask, daemon=True).start()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _read_line(prompt: str) -> str:
    """Without its newline. KeyboardInterrupt after a Ctrl-C, EOFError after a Ctrl-D.

    `input()` loses a Ctrl-C that comes between the prompt and the read: CPython notices a signal there only when it
    interrupts the read. Here its number, in a pipe, ends the wait, and nothing is raised at any other moment.
    """
    signalled, signal_writer = os.pipe()
    for end in (signalled, signal_writer):
        os.set_blocking(end, False)
    handler_before = signal.signal(signal.SIGINT, _ignore)
    before = signal.set_wakeup_fd(signal_writer)
    try:
        print(prompt, end="", flush=True)
        line: str | None = None
        while line is None:
            ready, _, _ = select.select([sys.stdin, signalled], [], [])
            line = sys.stdin.readline() if sys.stdin in ready else None
            if signal.SIGINT in _read_available(signalled):
                raise KeyboardInterrupt
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler_before)
        os.close(signalled)
        os.close(signal_writer)
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _read_available(fd: int) -> bytes:
    try:
        return os.read(fd, 100)
    except BlockingIOError:
        return b""


def _ignore(number: int, frame: FrameType | None) -> None:
    """Only its number in the pipe matters."""
