"""Tells the calls of one reply apart. Servers agree on the words of a call's fragments, not on how to number them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core.deltas import CallDelta, Delta
from holdfast.llm.broken_json import NOT_JSON
from holdfast.llm.chat.chunks import CallFragment, Function
from holdfast.llm.tool_calls import CallIds, own_name


class _Call:
    def __init__(self, sent_id: str | None) -> None:
        self.sent_id = sent_id or ""
        self.name = ""
        self.waiting = ""  # arguments that came before the name
        self._pieces: list[str] = []
        self._end = ""  # the last of them that is not blank

    def add(self, arguments: str) -> None:
        self._pieces.append(arguments)
        self._end = arguments.rstrip() or self._end

    @property
    def is_whole(self) -> bool:
        """Asked with every fragment where the name is repeated: mostly its end shows that it is not."""
        return self._end.endswith("}") and _is_whole("".join(self._pieces))


class ChatCalls:
    """`names`: what tools are called here, by what the vendor was told."""

    def __init__(self, ids: CallIds, names: Mapping[str, str]) -> None:
        self._ids = ids
        self._names = names
        self._calls: list[_Call] = []
        self._by_index: dict[int | None, int] = {}  # the vendor's index, None when it gives none; our number

    @property
    def made(self) -> bool:
        return bool(self._calls)

    def read(self, fragments: list[CallFragment]) -> list[Delta]:
        deltas: list[Delta] = []
        seen: set[int | None] = set()
        for fragment in fragments:
            number = self._by_index.get(fragment.index)
            if number is None or self._begins_another(fragment, self._calls[number], fragment.index in seen):
                number = self._by_index[fragment.index] = len(self._calls)
                self._calls.append(_Call(fragment.id))
            seen.add(fragment.index)
            if (delta := self._delta(number, fragment.function or Function())) is not None:
                deltas.append(delta)
        return deltas

    def _begins_another(self, fragment: CallFragment, known: _Call, same_chunk: bool) -> bool:
        """Whether a fragment with a known index is nevertheless of a call of its own."""
        name = fragment.function.name if fragment.function else None
        if not name:
            return False
        if fragment.id and known.sent_id:
            return fragment.id != known.sent_id
        # Without ids a name says it: another one, again in the same chunk, or again when the arguments were whole.
        return bool(known.name) and (name != known.name or same_chunk or known.is_whole)

    def _delta(self, number: int, function: Function) -> CallDelta | None:
        call, arguments = self._calls[number], _text(function)
        call.add(arguments)
        if call.name:
            return CallDelta(number, arguments=arguments) if arguments else None
        if not function.name:
            call.waiting += arguments
            return None
        call.name = function.name
        name = own_name(function.name, self._names)
        return CallDelta(number, self._ids.own(call.sent_id), name, call.waiting + arguments)


def _text(function: Function) -> str:
    arguments = function.arguments
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    return arguments or ""


def _is_whole(arguments: str) -> bool:
    try:
        msgspec.json.decode(arguments, type=dict)
    except NOT_JSON:
        return False
    return True
