"""The words that a text is found by: lower case, without accents and vowel signs, plurals as singulars.

Both databases index what is written here, so that a search finds the same in each. Languages that are written without
spaces give pairs of neighbouring characters. What was found by words and by meaning becomes one ranking here too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
_MARKS: Final = frozenset({"Mn", "Mc"})
_JOINERS: Final = "\u00ad\u200c\u200d"  # within words: soft hyphen, zero width non-joiner and joiner
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e00-\u0e7f]+")
_LONGEST: Final = 64  # characters of a word: longer ones are keys and encoded data, which nobody searches for whole
# Of a text. PostgreSQL indexes at most 1 MiB of it: the bytes of each word, and up to six more for its place.
MOST_WORDS: Final = 50_000
MOST_BYTES: Final = 600_000
MOST_ASKED: Final = 64
_DAMPING: Final = 60  # the constant of the original paper: how little a first place counts more than a second


def _singular(word: str) -> str:
    """English plurals and third persons; what it does to other words it does to the query too."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and word[-2] not in "su":
        return word[:-2] if word.endswith(("shes", "ches", "xes", "sses")) else word[:-1]
    return word


# Words of a question that nearly every text has. A search leaves them out unless there is nothing else in it.
_COMMON: Final = frozenset(
    _singular(word)
    for word in """
    a about am an and are as at be but by can could did do does for from had has have he her him his how i if in is it
    its me my not of on or our she so than that the their them then there they this to us was we were what when where
    which who why will with would you your
    """.split()  # noqa: SIM905 - a list of one word per line would fill a screen
)


def words_of(text: str) -> list[str]:
    """In their order, repeated as they are repeated."""
    # Marks that stand alone after decomposition are accents, or vowels of Indic scripts; what is left is lower-cased
    # last, as `İ` needs.
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(char for char in decomposed if unicodedata.category(char) not in _MARKS and char not in _JOINERS)
    found: list[str] = []
    size = 0
    for match in _WORD.finditer(plain.lower().replace("ς", "σ")):  # how a word ends says nothing about which it is
        for piece in _pieces(match.group()):
            size += len(piece.encode())
            if len(found) == MOST_WORDS or size > MOST_BYTES:
                return found
            found.append(piece)
    return found


def query_words(query: str) -> list[str]:
    """The words that a search looks for, each once."""
    words = list(dict.fromkeys(words_of(query)))
    telling = [word for word in words if word not in _COMMON]
    return (telling or words)[:MOST_ASKED]


def _pieces(word: str) -> list[str]:
    if not _UNSPACED.search(word):
        return [_singular(word[:_LONGEST])]
    pieces: list[str] = []
    at = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > at:
            pieces.append(_singular(word[at : run.start()][:_LONGEST]))
        characters = run.group()
        pieces += [characters[i : i + 2] for i in range(len(characters) - 1)] or [characters]
        at = run.end()
    if at < len(word):
        pieces.append(_singular(word[at:][:_LONGEST]))
    return pieces


def fuse_rankings(rankings: Iterable[Sequence[str]]) -> list[tuple[str, float]]:
    """Reciprocal rank fusion: one ranking out of several whose scores cannot be compared.

    Ids with their scores, best first. Among equals, who came first in the first ranking that has it.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, found in enumerate(ranking, start=1):
            scores[found] = scores.get(found, 0.0) + 1 / (_DAMPING + rank)
    return sorted(scores.items(), key=lambda item: -item[1])
