"""Query parameters that many routes share. Cursors are ids, exclusive, and relative to the order asked for."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Depends, Query
from pydantic import AfterValidator

from holdfast.core.spec import Speaking
from holdfast.wire.bounds import MAX_QUERY

MAX_LIMIT: Final = 1000
INT64_MAX: Final = 2**63 - 1


def _page_size(limit: int) -> int:
    """Programs that want everything ask for 10,000 or more. They get a full page, and can ask for the next."""
    return min(limit, MAX_LIMIT)


def _cursor(id: str | None) -> str | None:
    """Form builders send every parameter, with nothing in it where there is no cursor yet."""
    return id or None


# Pages differ in their default, so it is given in the signature: `limit: Limit = 50`.
Limit = Annotated[
    int, Query(ge=1, description=f"How many items a page may hold; at most {MAX_LIMIT}."), AfterValidator(_page_size)
]
Before = Annotated[
    str | None, Query(description="Only items before this id, in the order asked for."), AfterValidator(_cursor)
]
After = Annotated[
    str | None, Query(description="Only items after this id, in the order asked for."), AfterValidator(_cursor)
]
SearchQuery = Annotated[str | None, Query(max_length=MAX_QUERY)]
Order = Annotated[Literal["asc", "desc"], Query(description="`asc` is oldest first, `desc` newest first.")]
OrderBy = Annotated[Literal["created_at"], Query(description="The field that decides the order.")]


def _speaking(
    use_assistant_message: bool = True,
    assistant_message_tool_name: str = Speaking().tool,
    assistant_message_tool_kwarg: str = Speaking().argument,
) -> Speaking | None:
    return Speaking(assistant_message_tool_name, assistant_message_tool_kwarg) if use_assistant_message else None


# The tool whose calls are listed as what the agent says.
SpeakingTool = Annotated[Speaking | None, Depends(_speaking)]

# Databases keep 64 bits; larger numbers are refused at the door.
Int64 = Annotated[int, Query(ge=-INT64_MAX - 1, le=INT64_MAX)]
Count = Annotated[int, Query(ge=0, le=INT64_MAX)]
