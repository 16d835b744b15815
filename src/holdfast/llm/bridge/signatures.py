"""What a vendor wants back with its own words, as the opaque text that our signatures are.

A proof that is nothing but a signature is kept as it came. One that has more to it (the ids of Responses items, which
summary ended where) is kept as JSON. Text that cannot be a proof of this vendor is none: it came from another one.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart

from holdfast.llm.broken_json import NOT_JSON

# Of all that pydantic-ai keeps about a part, what a vendor needs to see again.
_RETURNED_DETAILS: Final = ("thought_signature", "phase", "namespace", "raw_content", "extra_content")

# What a text that is not JSON stands for; None: it is no proof.
Bare = Literal["signature", "thought_signature"] | None


class Proof(msgspec.Struct, frozen=True, omit_defaults=True):
    by: str
    id: str | None = None
    signature: str | None = None
    details: dict[str, Any] = {}
    after: str | None = None  # the id of the reasoning without which the vendor refuses this part
    pieces: tuple[int, ...] = ()  # how long each summary is, when there are several


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Proof).decode


def of(part: TextPart | ThinkingPart | ToolCallPart, by: str) -> Proof:
    kept = {name: value for name, value in (part.provider_details or {}).items() if name in _RETURNED_DETAILS}
    return Proof(by, part.id, part.signature if isinstance(part, ThinkingPart) else None, kept)


def written(proof: Proof, bare: Bare) -> str | None:
    if proof == Proof(proof.by):
        return None
    if bare == "signature" and proof == Proof(proof.by, signature=proof.signature):
        return proof.signature
    if bare == "thought_signature" and proof == Proof(proof.by, details={bare: (text := proof.details.get(bare))}):
        return str(text)
    return _encode(proof).decode()


def read(text: str | None, by: str, bare: Bare) -> Proof | None:
    if not text:
        return None
    if not text.startswith("{"):
        return {
            "signature": Proof(by, signature=text),
            "thought_signature": Proof(by, details={"thought_signature": text}),
            None: None,
        }[bare]
    try:
        proof = _decode(text)
    except NOT_JSON:
        return None
    return proof if proof.by == by else None
