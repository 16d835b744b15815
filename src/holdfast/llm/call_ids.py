"""Every call has an id of its own, whatever the vendor sends.

Some servers send none, some count from zero in every reply. A history tells calls and returns apart by their ids, so
one that is missing, or known from an earlier reply, is replaced.
"""

from __future__ import annotations

from holdfast import ids
from holdfast.core.messages import ToolCall
from holdfast.llm.base import ModelRequest


class CallIds:
    """For one reply."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._taken: set[str] | None = None

    def own(self, said: str | None) -> str:
        if self._taken is None:
            self._taken = {part.id for turn in self._request.turns for part in turn.parts if isinstance(part, ToolCall)}
        call_id = said if said and said not in self._taken else ids.new("call")
        self._taken.add(call_id)
        return call_id
