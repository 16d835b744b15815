"""JSON answers, encoded once, straight to bytes. No second validation of what we built ourselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.responses import Response


def _encode_foreign(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def is_json_type(content_type: bytes) -> bool:
    """The one judgement of a Content-Type header: what it takes for JSON is checked and read as JSON, nothing else."""
    if content_type == b"application/json":  # as nearly all write it
        return True
    media_type = content_type.partition(b";")[0].strip().lower()
    return media_type == b"application/json" or (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    )


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value`: dicts, lists, msgspec structs, datetimes and pydantic models, nested in any way."""
    return Response(_encoder.encode(value), status, headers, "application/json")
