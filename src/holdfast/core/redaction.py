"""Makes what went to and came from a vendor fit to be kept: without keys, without secrets, without pictures, and short.

Works on decoded JSON and gives decoded JSON. It would rather hide a harmless word than keep a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, cast

import msgspec

HIDDEN: Final = "[hidden]"
LEAST_BYTES: Final = 64  # below that, there is no room for saying what was left out
_PIECE: Final = 32  # bytes for one piece of a list or an object: room for saying that it was cut
_SHORTEST_SECRET: Final = 4  # hiding every "1" would hide the text
_LONG_BASE64: Final = 512
_SECRET_NAMES: Final = ("apikey", "accesskey", "secretkey", "privatekey", "secret", "password", "token", "credentials")
_SECRET_FIELDS: Final = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie", "bearer"})
_DATA_URL: Final = r"(data:[\w.+-]+/[\w.+-]+;base64,)([A-Za-z0-9+/_-]+={0,2})"
_BASE64: Final = r"[A-Za-z0-9+/_-]+={0,2}"
_MEDIA_TYPE: Final = ("media_type", "mime_type", "mimeType", "mediaType")
# Looking for a word is many times quicker than trying a pattern everywhere, and most texts hold none of these.
_SIGNS_OF_KEYS: Final = (
    *(f"{prefix}{mark}" for prefix in ("sk", "pk", "rk", "xai", "gsk", "hf", "key", "glpat", "fw") for mark in "-_"),
    *("AIza", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xox", "eyJ", " PRIVATE KEY"),
)
_SIGN_OF_AN_ADDRESS: Final = "://"
_SIGNS_OF_NAMES: Final = ("authorization", "key", "secret", "password", "token", "bearer")
_KEYS: Final = r"""
    -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----[^-]*(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----)?
    | \b(?:sk|pk|rk|xai|gsk|hf|key|glpat|fw)[-_][A-Za-z0-9_-]{16,}   # most vendors of models
    | \bAIza[A-Za-z0-9_-]{30,}                                        # Google
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                                   # AWS
    | \b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}                    # GitHub
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}                                # Slack
    | (?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*  # JSON Web Tokens; begun once in a long word
    """
# A field that is named like a secret, in a header, a query string or JSON within a text.
_NAMED: Final = r"""
    ( (?: authorization | api[-_]?key | access[-_]?key | secret[-_]?key | secret | password | token )
      \\*["']? \s* [:=] \s* \\*["']? (?:(?:bearer|basic)\s+)?
      | \b bearer \s+
    )
    [^\s"'\\,;&}\]]{8,}
    """
# Credentials in URLs: the password before the host, and the signature of a signed URL.
_IN_ADDRESSES: Final = r"""
    ( :// [^\s/?\#@:"'\\]* : ) [^\s/?\#@"'\\]+ (?=@)
    | ( [?&] (?:amp;)? (?:x-(?:amz|goog)-)? sig(?:nature)? = ) [^\s"'\\&\#]+
    """


class Redactor:
    """`secrets` are values that are removed wherever they occur, in plain text or escaped as in JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        known |= {_json_spelling(secret) for secret in known}
        self._secrets = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True)))) if known else None

    def hide(self, value: Any) -> Any:
        match value:
            case str():
                return self.hide_in_text(value)
            case dict():
                return self._hide_in_object(cast("dict[str, Any]", value))
            case list() | tuple():
                return [self.hide(item) for item in cast("Sequence[Any]", value)]
            case _:
                return value

    def hide_in_text(self, text: str) -> str:
        if len(text) >= _LONG_BASE64 and _compiled(_BASE64).fullmatch(text):
            return _size_of(text)
        if ";base64," in text:
            text = _compiled(_DATA_URL).sub(lambda found: found[1] + _size_of(found[2]), text)
        if self._secrets is not None:
            text = self._secrets.sub(HIDDEN, text)
        if any(sign in text for sign in _SIGNS_OF_KEYS):
            text = _compiled(_KEYS, re.VERBOSE).sub(HIDDEN, text)
        if _SIGN_OF_AN_ADDRESS in text:
            text = _compiled(_IN_ADDRESSES, re.VERBOSE | re.IGNORECASE).sub(
                lambda found: (found[1] or found[2]) + HIDDEN, text
            )
        lowered = text.lower()
        if any(sign in lowered for sign in _SIGNS_OF_NAMES):
            text = _compiled(_NAMED, re.VERBOSE | re.IGNORECASE).sub(lambda found: found[1] + HIDDEN, text)
        return text

    def _hide_in_object(self, fields: dict[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        is_media = any(name in fields for name in _MEDIA_TYPE)
        for name, value in fields.items():
            if isinstance(value, str) and is_secret_name(name):
                hidden: Any = HIDDEN
            elif isinstance(value, str) and is_media and name == "data":
                hidden = _size_of(value)
            else:
                hidden = self.hide(value)
            shown[self.hide_in_text(name)] = hidden
        return shown


def is_secret_name(name: str) -> bool:
    bare = name.lower().replace("-", "").replace("_", "")
    return bare in _SECRET_FIELDS or bare.endswith(_SECRET_NAMES)


def cut(value: Any, most_bytes: int) -> Any:
    """The value, or as much of it as fits when it is encoded. Small parts stay whole; the large ones share the rest."""
    return _fit(value, max(most_bytes, LEAST_BYTES))


def _fit(value: Any, room: int) -> Any:
    size = _size(value)
    if size <= room:
        return value
    match value:
        case str():
            return _fit_text(value, room)
        case dict():
            return _fit_object(cast("dict[str, Any]", value), room)
        case list():
            return _fit_list(cast("list[Any]", value), room)
        case _:
            return _left_out(size, "bytes")


def _fit_text(text: str, room: int) -> str:
    """A letter may take up to six bytes in JSON, so the length is found by trying. The mark alone always fits."""
    kept, shown = len(text), text
    while (size := _size(shown)) > room:
        kept = max(0, min(kept - 1, kept * room // size - 8))
        shown = text[:kept] + _left_out(len(text) - kept, "characters")
    return shown


def _fit_list(items: list[Any], room: int) -> list[Any]:
    """The first and the last matter most; what is left out is left out of the middle."""
    inside = room - 2
    most = inside // (_PIECE + 1)
    if len(items) > most:
        head = max(0, (most - 1) // 2)
        tail = max(0, most - 1 - head)
        gone = _left_out(len(items) - head - tail, "items")
        items = [*items[:head], gone, *items[len(items) - tail :]]
    rooms = _shares([_size(item) for item in items], inside - len(items))
    return [_fit(item, share) for item, share in zip(items, rooms, strict=True)]


def _fit_object(fields: dict[str, Any], room: int) -> dict[str, Any]:
    inside = room - 2 - _PIECE - 8  # the last is for saying that fields were left out
    names: list[str] = []
    for name in fields:
        inside -= _size(name) + 2
        if inside < (len(names) + 1) * _PIECE:
            inside += _size(name) + 2
            break
        names.append(name)
    rooms = _shares([_size(fields[name]) for name in names], inside)
    kept = {name: _fit(fields[name], share) for name, share in zip(names, rooms, strict=True)}
    if len(kept) < len(fields):
        kept["…"] = _left_out(len(fields) - len(kept), "fields")
    return kept


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """How much of the room each may take: all that it needs, or an equal share of what the smaller ones leave."""
    shares = [0] * len(sizes)
    left = len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        shares[index] = min(sizes[index], room // left)
        room -= shares[index]
        left -= 1
    return shares


def _left_out(count: int, what: str) -> str:
    return f"[{count} {what} cut]"


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _size_of(base64: str) -> str:
    return f"[{len(base64.rstrip('=')) * 3 // 4} bytes]"


def _json_spelling(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


@cache
def _compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """When first used: compiling them takes longer than all else here, and is for nothing while tracing is off."""
    return re.compile(pattern, flags)
