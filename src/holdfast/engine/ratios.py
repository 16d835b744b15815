"""What a vendor counts for each token that we guess: learnt from its replies, and stored with their checkpoints."""

from __future__ import annotations

from holdfast.core import budget
from holdfast.core.usage import Usage
from holdfast.store import kv
from holdfast.store.transaction import Database, Transaction


class TokenRatios:
    """In memory once asked for; several workers learn side by side, and the last to store is read by the next."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, float | None] = {}
        self._stored: dict[str, float | None] = {}

    async def of(self, handle: str) -> float | None:
        """None: this model has not said yet."""
        if handle not in self._known:
            stored = await self._database.read(lambda tx: kv.number(tx, _key(handle)))
            self._stored.setdefault(handle, stored)
            self._known.setdefault(handle, stored)
        return self._known[handle]

    def learn(self, handle: str, guessed: int, usage: Usage | None) -> float | None:
        """The ratio to be stored, when it has moved far enough for that."""
        if usage is None or usage.estimated:
            return None
        ratio = self._known[handle] = budget.updated_ratio(self._known.get(handle), guessed, usage.prompt_tokens)
        if ratio is None or not budget.worth_storing(self._stored.get(handle), ratio):
            return None
        self._stored[handle] = ratio
        return ratio


async def store_ratio(tx: Transaction, handle: str, ratio: float) -> None:
    await kv.set_number(tx, _key(handle), ratio)


def _key(handle: str) -> str:
    return f"token_ratio/{handle}"
