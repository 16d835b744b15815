"""The API of a vendor as far as a program that is tried here calls it with the vendor's own SDK: what it was sent is
kept, and the answer is always the same. Models of the server's agents are played by tests/llm/fakes instead."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

ANSWER = "Nice to meet you."
_USAGE = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}


class SimulatedVendor(ThreadingHTTPServer):
    """Speaks the chat completions of OpenAI, streamed or not, and the messages of Anthropic."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.requests: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Answering(BaseHTTPRequestHandler):
    server: SimulatedVendor  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(request)
        if self.path.endswith("/chat/completions"):
            streamed = bool(request.get("stream"))
            self._send(_chunks() if streamed else [_completion()], "event-stream" if streamed else "json")
        elif self.path.endswith("/messages"):
            self._send([_claude_message()], "json")
        else:
            self.send_error(404)

    def _send(self, parts: Iterable[dict[str, Any]], kind: str) -> None:
        texts = [json.dumps(part) for part in parts]
        if kind == "event-stream":
            texts = [f"data: {text}\n\n" for text in (*texts, "[DONE]")]
        body = "".join(texts).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if kind == "event-stream" else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def simulated_vendor() -> Generator[SimulatedVendor]:
    with SimulatedVendor() as vendor:
        serving = threading.Thread(target=vendor.serve_forever, daemon=True)
        serving.start()
        try:
            yield vendor
        finally:
            vendor.shutdown()
            serving.join()


def _completion() -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "choices": [choice],
        "usage": _USAGE,
    }


def _chunks() -> list[dict[str, Any]]:
    deltas = [{"role": "assistant", "content": ANSWER[:4]}, {"content": ANSWER[4:]}, {}]
    return [
        {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "gpt-5",
            "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}],
        }
        for delta in deltas
    ]


def _claude_message() -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": ANSWER}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 4},
    }
