"""Models at Amazon Bedrock. Its SDK signs and understands; what it would send goes through our HTTP client.

The SDK blocks a thread for every reply, on a socket that only that thread can let go of. So it is left its signatures
and its words, and nothing is sent by it: what it would send goes out through our client, from the event loop, and
the thread waits for that. Giving up a reply lets go of both.

The reply is a stream in Amazon's framing: lengths, headers, a payload, and sums over all of it.
A frame is `total length, length of the headers, sum of these two, headers, payload, sum of everything before`; numbers
are big-endian. A header is `length of its name, name, type, value`; names of events and errors are texts, type 7.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cache
from itertools import takewhile
from typing import Any, Final, TypeVar, cast
from zlib import crc32

import boto3
import httpx2
import msgspec
from anyio.to_thread import current_default_thread_limiter
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider
from pydantic_ai.settings import ModelSettings

from holdfast.core.messages import Reasoning, RedactedReasoning
from holdfast.errors import AuthRejected, BadReply, Refused
from holdfast.llm import failures
from holdfast.llm.anthropic.traits import DEFAULT_BUDGET, LEAST_BUDGET, Traits, traits_of
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.response_tap import CURRENT_TAP, ResponseTap, Reworded, Wants
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.broken_json import NOT_JSON
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import not_a_stream, without_key

# A provider brings its keys and its region; the profiles of whoever runs the server have no part in it.
_NOBODYS: Final = {"profile": (None, None, None, None)}
_EVENTS: Final = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)
# One for each reply that is being waited for. A run must not wait for another one's silence.
_THREADS: Final = 1_000
_SHOWN_BYTES: Final = 64 * 1024
_decode = msgspec.json.Decoder(dict[str, Any]).decode
T = TypeVar("T")
_PRELUDE: Final = struct.Struct("!III")
_SUM: Final = struct.Struct("!I")
_LARGEST: Final = 24 * 1024 * 1024  # the vendor's own limit
_TEXT: Final = 7
_LENGTH: Final = struct.Struct("!H")


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    model = BedrockConverseModel(info.name, provider=BedrockProvider(bedrock_client=_sdk(endpoint, client)))
    return Vendor(
        model=model,
        settings=lambda request: _settings(request, traits_of(info.name)),
        wants=_is_event,
        tap=SignedTap,
        errors={BotoCoreError: Refused},
        bare="signature",
        redacts=True,
        marks_errors=True,
        fails_in_words=True,
        takes_blanks=False,
        prefills=False,
        knows_called=False,
    )


def _sdk(endpoint: Endpoint, client: httpx2.AsyncClient) -> Any:
    if not (endpoint.options.get("access_key") and endpoint.api_key):
        # Without keys the SDK would look for the server's own, wherever they may be.
        raise AuthRejected(f"{endpoint.provider_name} needs the id of an AWS key and its secret.")
    core: Any = Session(_NOBODYS)
    core.register_component("data_loader", _descriptions())
    session = boto3.Session(
        botocore_session=core,
        aws_access_key_id=endpoint.options.get("access_key"),
        aws_secret_access_key=endpoint.api_key,
        aws_session_token=endpoint.options.get("session_token"),
        region_name=endpoint.options.get("region"),
    )
    # The signature is named because a token in the server's environment would else be shown instead of these keys.
    config = Config(signature_version="v4", retries={"total_max_attempts": 1, "mode": "standard"})
    sdk = cast("Any", session).client("bedrock-runtime", config=config, endpoint_url=endpoint.base_url)
    sdk.meta.events.register("before-send.bedrock-runtime", Carrier(client))
    return sdk


@cache
def _descriptions() -> Any:
    """What the SDK knows of Amazon's services: the same for everyone, and slow to read."""
    core: Any = Session(_NOBODYS)
    return core.get_component("data_loader")


def _settings(request: ModelRequest, traits: Traits) -> ModelSettings:
    settings: dict[str, Any] = {**common_settings(request, parallel=False)}
    wanted = _thinking(request, traits) if _may_think(request) else None
    if wanted is not None:
        settings["bedrock_additional_model_requests_fields"] = {"thinking": wanted}
    if wanted is not None or not traits.sampling:
        settings.pop("temperature", None)  # refused while it thinks, and by newer models always
    return cast("ModelSettings", settings)


def _thinking(request: ModelRequest, traits: Traits) -> dict[str, Any] | None:
    """None: not asked for, or no room for it in the longest reply that is asked for."""
    thinking: dict[str, Any] = request.settings.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return None
    budget = thinking.get("budget_tokens") or 0
    if traits.adaptive and not (budget and traits.budgets):
        return {"type": "adaptive"}
    budget = max(LEAST_BUDGET, budget or DEFAULT_BUDGET)
    if request.max_output_tokens is not None:
        budget = min(budget, request.max_output_tokens - 1)
    return {"type": "enabled", "budget_tokens": budget} if budget >= LEAST_BUDGET else None


def _may_think(request: ModelRequest) -> bool:
    """Claude refuses to while a tool is demanded, and in the rest of a turn whose calls it made without."""
    if request.tools and request.tool_choice not in ("auto", "none"):
        return False
    current = takewhile(lambda turn: turn.role != "user", reversed(request.turns))
    replies = [turn for turn in current if turn.role == "assistant"]
    return all(any(isinstance(part, Reasoning | RedactedReasoning) for part in turn.parts) for turn in replies)


def _is_event(event: Mapping[str, Any]) -> bool:
    return event.get("type") in _EVENTS


class SignedTap(ResponseTap):
    """A reply in frames, waited for by threads."""

    def __init__(self, endpoint: Endpoint, wants: Wants, reworded: Reworded) -> None:
        super().__init__(endpoint, wants, reworded)
        self._frames = FrameReader()
        self._beginning = b""
        self._loop = asyncio.get_running_loop()
        self._errands: set[asyncio.Task[Any]] = set()
        self._is_left = False
        limiter = current_default_thread_limiter()
        limiter.total_tokens = max(limiter.total_tokens, _THREADS)

    def passed(self, chunk: bytes) -> Iterator[bytes]:
        if len(self._beginning) < _SHOWN_BYTES:
            self._beginning += chunk
        try:
            yield from filter(None, map(self._passed_frame, self._frames.feed(chunk)))
        except ValueError as error:
            raise self._unreadable(str(error)) from error

    def rest(self) -> Iterator[bytes]:
        if self._frames.is_amid_a_frame:
            raise self._unreadable("it ends within a frame")
        yield from ()

    def wait_for(self, errand: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Of a thread: what the loop makes of the errand. Raises CancelledError when the reply was given up."""

        async def run() -> T:
            task = asyncio.current_task()
            assert task is not None
            if self._is_left:
                raise asyncio.CancelledError
            self._errands.add(task)
            try:
                return await errand()
            finally:
                self._errands.discard(task)

        if self._is_left:  # and the loop may be gone
            raise asyncio.CancelledError
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def hang_up(self) -> None:
        self._is_left = True
        errands = tuple(self._errands)
        for errand in errands:
            errand.cancel()
        await asyncio.gather(*errands, return_exceptions=True)
        await super().hang_up()

    def _passed_frame(self, frame: Frame) -> bytes:
        content = self._content(frame)
        failed = frame.headers.get(":exception-type") or frame.headers.get(":error-code")
        if failed is not None:
            message = content.get("message") or frame.headers.get(":error-message") or failed
            raise failures.failure(self._endpoint.provider_name, (failed,), str(message))
        self._note_figures(content)
        return frame.raw if self._wants({"type": frame.headers.get(":event-type")}) else b""

    def _content(self, frame: Frame) -> dict[str, Any]:
        try:
            return _decode(without_key(self._endpoint, frame.payload)) if frame.payload else {}
        except NOT_JSON as error:
            raise BadReply(f"{self._endpoint.provider_name} sent an event that is not a JSON object.") from error

    def _unreadable(self, why: str) -> Exception:
        if not self._beginning.startswith(b"\0"):  # as any frame of less than 16 MB does
            return not_a_stream(self._endpoint, self._beginning)
        return BadReply(f"{self._endpoint.provider_name} sent a stream of events that cannot be read: {why}.")


class Carrier:
    """Registered with the SDK as what happens before it sends: its answer takes the place of the SDK's own."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    def __call__(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        tap = CURRENT_TAP.get()
        assert isinstance(tap, SignedTap)
        prepared = cast("Any", request)
        sent = self._client.build_request(
            prepared.method, prepared.url, headers=_texts(prepared.headers), content=prepared.body
        )
        answer = tap.wait_for(lambda: self._client.send(sent, stream=True))
        return AWSResponse(prepared.url, answer.status_code, dict(answer.headers), _Body(answer, tap))


class _Body:
    """As much of a urllib3 response as the SDK looks at."""

    def __init__(self, answer: httpx2.Response, tap: SignedTap) -> None:
        self._chunks = aiter(answer.aiter_raw())
        self._tap = tap

    def stream(self) -> Iterator[bytes]:
        while (chunk := self._tap.wait_for(self._next)) is not None:
            yield chunk

    def close(self) -> None:
        """Whoever gives up the reply hangs up."""

    async def _next(self) -> bytes | None:
        return await anext(self._chunks, None)


def _texts(headers: Mapping[str, str | bytes]) -> dict[str, str]:
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in headers.items()}


class Frame(msgspec.Struct, frozen=True):
    headers: dict[str, str]
    payload: bytes
    raw: bytes


class FrameReader:
    """Raises ValueError for bytes that are not frames."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def is_amid_a_frame(self) -> bool:
        return bool(self._held)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        self._held += chunk
        while len(self._held) >= _PRELUDE.size:
            total, headers, checksum = _PRELUDE.unpack_from(self._held)
            if checksum != crc32(self._held[:8]) or not _PRELUDE.size + headers + _SUM.size <= total <= _LARGEST:
                raise ValueError("its beginning is not that of a frame")
            if len(self._held) < total:
                return
            raw, self._held = self._held[:total], self._held[total:]
            if _SUM.unpack(raw[-4:])[0] != crc32(raw[:-4]):
                raise ValueError("its sum is wrong")
            begin = _PRELUDE.size + headers
            yield Frame(dict(_headers(raw[_PRELUDE.size : begin])), raw[begin:-4], raw)


def _headers(block: bytes) -> Iterator[tuple[str, str]]:
    """Those that are texts, up to the first that is not: all that name a frame are, and nothing else is looked for."""
    at = 0
    while at < len(block):
        value = at + 1 + block[at] + 1
        if value + 2 > len(block) or block[value - 1] != _TEXT:
            return
        (length,) = _LENGTH.unpack_from(block, value)
        name, at = block[at + 1 : value - 1].decode(errors="replace"), value + 2 + length
        yield name, block[value + 2 : at].decode(errors="replace")
