"""The words that a text is found by: lower case, without accents, plurals as singulars.

Both databases index what is written here, so that a search finds the same in each. Languages that are written without
spaces give pairs of neighbouring characters.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e00-\u0e7f]+")
_LONGEST: Final = 64  # characters of a word: longer ones are keys and encoded data, which nobody searches for whole
MOST_WORDS: Final = 50_000  # of a text; PostgreSQL indexes at most 1 MB of them
MOST_ASKED: Final = 64


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
    # Marks that stand alone after decomposition are accents; what is left is lower-cased last, as `İ` needs.
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(char for char in decomposed if unicodedata.category(char) != "Mn").lower()
    found: list[str] = []
    for match in _WORD.finditer(plain):
        found.extend(_pieces(match.group()))
        if len(found) >= MOST_WORDS:
            break
    return found[:MOST_WORDS]


def asked_words(query: str) -> list[str]:
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
