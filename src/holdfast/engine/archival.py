"""Archival memory: puts passages into archives and finds them again.

A vector is made before the passage is stored, and never stands in its way: if the embedding model cannot be reached,
the passage is stored without one, is found by its words, and gets its vector with the next passage that its archive is
given. A search whose query gets no vector goes by words alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast import ids
from holdfast.core.records import Agent, Archive, Passage
from holdfast.core.search_words import fuse_rankings, query_words
from holdfast.core.usage import estimate_tokens
from holdfast.engine.clock import Clock
from holdfast.errors import (
    AddressRefused,
    ContextTooLong,
    Invalid,
    ModelError,
    ModelTimedOut,
    NotFound,
    Refused,
    RunInterrupted,
    Unsupported,
)
from holdfast.llm.base import Catalog
from holdfast.store import agents, archives, passage_search, passages
from holdfast.store.passage_search import PassageFilter
from holdfast.store.passages import PassageRows
from holdfast.store.transaction import Database, Parameters, Transaction
from holdfast.store.vector_distance import normalised
from holdfast.store.vector_index import VectorIndex

Mode = Literal["hybrid", "vector", "text"]
_DEPTH: Final = 50  # of each ranking that is fused, at least
_BATCH: Final = 32  # texts of one embedding request, unless the archive says otherwise
_LARGEST_BATCH: Final = 256
_LARGEST_ANSWER: Final = 8_000_000  # bytes
_BYTES_OF_NUMBER: Final = 25  # as JSON, with all its digits
_USUAL_DIMENSION: Final = 4_096  # of large models; if the archive does not say
_REFUSALS_IN_A_ROW: Final = 2

log = logging.getLogger(__name__)


class NewPassage(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    created_us: int | None = None  # None: now
    id: str | None = None  # None: a new one
    file_id: str | None = None


class PassageChange(msgspec.Struct, frozen=True, kw_only=True):
    """None: stays as it is."""

    text: str | None = None
    tags: tuple[str, ...] | None = None
    metadata: dict[str, Any] | None = None


class PassageWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Passages ready to be stored. `for_agent`: it has this archive, or is given it now if it `is_new`."""

    archive: Archive
    is_new: bool = False
    passages: tuple[Passage, ...]
    rows: PassageRows
    awaiting: int = 0  # how many of them are stored without the vector that they should have
    late: tuple[Passage, ...] = ()  # stored ones that have waited for their vectors
    late_rows: Sequence[Parameters] = ()
    for_agent: str | None = None


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """`archives`: None for all there are. The filter says the rest; which archives are in it is filled in."""

    query: str | None
    archives: tuple[Archive, ...] | None
    filter: PassageFilter = PassageFilter()
    limit: int = 50
    mode: Mode = "hybrid"


class Hit(msgspec.Struct, frozen=True):
    passage: Passage
    score: float


class ArchiveChanged(RunInterrupted):
    """Since the passages were made ready, the agent was given another archive or lost the one it had, or somebody else
    changed or deleted the passage."""


class ArchivalMemory:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        clock: Clock,
        token_limit: int = 8_192,
        embedding_timeout_s: float = 10.0,
    ) -> None:
        """`embedding_timeout_s`: what all models may take together for a search, and each batch of an insert."""
        self._database = database
        self._catalog = catalog
        self._clock = clock
        self._token_limit = token_limit
        self._embedding_timeout_s = embedding_timeout_s
        self._index = VectorIndex()

    async def add(self, archive_id: str, new: Sequence[NewPassage]) -> tuple[Archive, list[Passage]]:
        archive = await self._database.read(lambda tx: archives.get(tx, archive_id))
        write = await self.prepared(archive, new)
        await self._database.write(lambda tx: commit(tx, write))
        return archive, list(write.passages)

    async def add_for_agent(self, agent_id: str, new: Sequence[NewPassage]) -> tuple[Archive, list[Passage]]:
        while True:
            write = await self.prepared_for_agent(agent_id, new)
            try:
                await self._database.write(lambda tx, write=write: commit(tx, write))
            except ArchiveChanged:
                continue
            return write.archive, list(write.passages)

    async def change(self, agent_id: str, passage_id: str, changes: PassageChange) -> tuple[Archive, Passage]:
        """A passage of the agent's archive. Another text gets another vector, as a new passage would."""
        while True:
            archive, known = await self._database.read(lambda tx: _passage_of(tx, agent_id, passage_id))
            changed = _changed(known, changes, self._clock.now_us())
            write = None if changed.text == known.text else await self.prepared(archive, [_as_new(changed)])
            try:
                await self._database.write(
                    lambda tx, known=known, changed=changed, write=write: _put_back(tx, agent_id, known, changed, write)
                )
            except ArchiveChanged:
                continue
            self.forget(archive.id)
            return archive, changed if write is None else write.passages[0]

    async def prepared_for_agent(self, agent_id: str, new: Sequence[NewPassage]) -> PassageWrite:
        """To be given to `commit`, which raises ArchiveChanged when it has to be made ready again."""
        archive, is_new = await self._database.read(lambda tx: _archive_for(tx, agent_id, self._clock.now_us()))
        return msgspec.structs.replace(await self.prepared(archive, new), is_new=is_new, for_agent=agent_id)

    async def of_agent(self, agent_id: str) -> Archive | None:
        async def read(tx: Transaction) -> Archive | None:
            await agents.require(tx, agent_id)
            return await archives.of_agent(tx, agent_id)

        return await self._database.read(read)

    async def search(self, wanted: Search) -> list[Hit]:
        """Best first; oldest first when there is no query."""
        if wanted.archives == ():
            return []
        found = None if wanted.archives is None else tuple(archive.id for archive in wanted.archives)
        scope = msgspec.structs.replace(wanted.filter, archive_ids=found)
        if not wanted.query or not wanted.query.strip():
            return await self._oldest(scope, wanted.limit)
        vectors = {} if wanted.mode == "text" else await self._query_vectors(wanted.query, wanted.archives)
        return await self._database.read_long(lambda tx: self._find(tx, wanted, scope, vectors))

    async def clear(self, archive_id: str) -> None:
        """Of an archive that is marked as deleted. If it is cut short, the worker goes on with it."""
        while not await self._database.write(lambda tx: archives.clear(tx, archive_id)):
            pass
        self.forget(archive_id)

    def forget(self, *archive_ids: str) -> None:
        """Passages of these archives were deleted."""
        self._index.forget(archive_ids)

    async def _find(
        self, tx: Transaction, wanted: Search, scope: PassageFilter, vectors: Mapping[tuple[str, ...], bytes]
    ) -> list[Hit]:
        query, depth = wanted.query or "", max(wanted.limit, _DEPTH)
        rankings = [
            await passage_search.by_vector(
                tx, self._index, vector, msgspec.structs.replace(scope, archive_ids=archive_ids), depth
            )
            for archive_ids, vector in vectors.items()
        ]
        if wanted.mode != "vector" or not vectors:
            rankings.append(await passage_search.by_words(tx, query_words(query), scope, depth))
        if not any(rankings):
            # Part of a word, or signs: what has no word of its own is still found where it stands.
            rankings.append(await passage_search.by_text(tx, query.strip(), scope, wanted.limit))
        best = dict(fuse_rankings(rankings)[: wanted.limit])
        return [Hit(passage, best[passage.id]) for passage in await passage_search.records(tx, list(best))]

    async def _oldest(self, scope: PassageFilter, limit: int) -> list[Hit]:
        async def read(tx: Transaction) -> list[Hit]:
            found = await passage_search.oldest(tx, scope, limit)
            return [Hit(passage, 0.0) for passage in await passage_search.records(tx, found)]

        return await self._database.read_long(read)

    async def _query_vectors(self, query: str, among: Sequence[Archive] | None) -> dict[tuple[str, ...], bytes]:
        """One for each model, with the archives that are searched by it."""
        if among is None:
            among = await self._database.read(archives.with_model)
        by_model: dict[str, list[str]] = {}
        for archive in among:
            if archive.embedding:
                by_model.setdefault(archive.embedding, []).append(archive.id)
        until = self._until(1)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._embedded(handle, [query], until)) for handle in by_model]
        made = zip(by_model.values(), (task.result().get(0) for task in asked), strict=True)
        return {tuple(archive_ids): vector for archive_ids, vector in made if vector is not None}

    def _until(self, batches: int) -> float:
        return asyncio.get_running_loop().time() + batches * self._embedding_timeout_s

    async def prepared(self, archive: Archive, new: Sequence[NewPassage], *, embed: bool = True) -> PassageWrite:
        """To be given to `commit`, or stored with an archive that is new itself. Without `embed` the model is not
        asked: the passages wait for their vectors."""
        for one in new:
            self._check_length(one.text)
        now_us = self._clock.now_us()
        made = tuple(_passage(archive.id, one, now_us) for one in new)
        telling = [passage for passage in made if passage.text.strip()] if archive.embedding else []
        until = self._until(max(1, -(-len(telling) // batch_size(archive))))
        vectors = await self._vectors(archive, telling, until) if embed else {}
        awaiting = {passage.id for passage in telling} - vectors.keys()
        late: tuple[Passage, ...] = ()
        if archive.embedding and embed and not awaiting:
            late, more = await self._late_vectors(archive, until, works=any(vectors.values()))
            vectors = {**vectors, **more}
        known = {key: vector for key, vector in vectors.items() if vector is not None}
        return PassageWrite(
            archive=archive,
            passages=made,
            rows=await asyncio.to_thread(passages.rows_of, made, known, awaiting),
            awaiting=len(awaiting),
            late=late,
            late_rows=await asyncio.to_thread(passages.vector_rows, late, known) if late else (),
        )

    async def _late_vectors(
        self, archive: Archive, until: float, *, works: bool
    ) -> tuple[tuple[Passage, ...], dict[str, bytes | None]]:
        batch = batch_size(archive)
        waiting = await self._database.read(lambda tx: passages.awaiting_vectors(tx, archive.id, batch))
        vectors = await self._vectors(archive, waiting, until, works=works)
        return tuple(passage for passage in waiting if passage.id in vectors), vectors

    async def _vectors(
        self, archive: Archive, texts: Sequence[Passage], until: float, *, works: bool = False
    ) -> dict[str, bytes | None]:
        """By passage id; without those that must wait. None: it has no vector, and will never have one. `works`: the
        model has just taken another text."""
        found: dict[str, bytes | None] = {}
        batch = batch_size(archive)
        for first in range(0, len(texts), batch):
            part = texts[first : first + batch]
            made = await self._embedded(archive.embedding or "", [passage.text for passage in part], until, works=works)
            found |= {part[at].id: vector for at, vector in made.items()}
            if len(made) < len(part):
                break
        return found

    async def _embedded(
        self, handle: str, texts: Sequence[str], until: float, *, works: bool = False
    ) -> dict[int, bytes | None]:
        """By place; without those that must wait, which are all when the model cannot be had now."""
        try:
            return await self._asked(handle, texts, until)
        except (Refused, ContextTooLong) as error:
            if isinstance(error, AddressRefused):
                log.warning("no vectors from the embedding model %s, words must do: %s", handle, error)
                return {}
            log.warning("the embedding model %s refuses a text, which is found by its words: %s", handle, error)
            return await self._embedded_alone(handle, texts, until, works=works)
        except (ModelError, NotFound, Unsupported) as error:
            log.warning("no vectors from the embedding model %s, words must do: %s", handle, error)
            return {}

    async def _embedded_alone(
        self, handle: str, texts: Sequence[str], until: float, *, works: bool
    ) -> dict[int, bytes | None]:
        """A refusal may be the text's fault or the provider's. It is the text's if the text is too long, or if the
        model takes another; otherwise the text waits. Two refusals in a row end it: all may be refused now."""
        found: dict[int, bytes | None] = {}
        refused: list[int] = []
        in_a_row = 0
        for at, text in enumerate(texts):
            try:
                found[at] = (await self._asked(handle, [text], until))[0]
                works, in_a_row = True, 0
            except ContextTooLong:
                found[at] = None
            except Refused:
                refused.append(at)
                in_a_row += 1
            except (ModelError, NotFound, Unsupported) as error:
                log.warning("no more vectors from the embedding model %s, words must do: %s", handle, error)
                break
            if in_a_row == _REFUSALS_IN_A_ROW:
                break
        return found | dict.fromkeys(refused if works else ())

    async def _asked(self, handle: str, texts: Sequence[str], until: float) -> dict[int, bytes | None]:
        """`until`: the time of the event loop at which the passage or the search goes on without."""
        try:
            async with asyncio.timeout_at(until):
                made = await self._catalog.embed(handle, texts)
        except TimeoutError as error:
            raise ModelTimedOut(
                f"no answer within HOLDFAST_EMBEDDING_TIMEOUT_S ({self._embedding_timeout_s:g})"
            ) from error
        return dict(enumerate(await asyncio.to_thread(lambda: [normalised(vector) for vector in made])))

    def _check_length(self, text: str) -> None:
        tokens = estimate_tokens(text)
        if tokens > self._token_limit:
            raise Invalid(
                f"The text has about {tokens} tokens; a passage of archival memory may have {self._token_limit}. "
                "Store it in parts."
            )


async def commit(tx: Transaction, write: PassageWrite) -> None:
    if write.for_agent is None:
        await archives.get(tx, write.archive.id, keep=True)
    else:
        await _give_archive(tx, write.for_agent, write.archive, is_new=write.is_new)
    await store_passages(tx, write)


async def store_passages(tx: Transaction, write: PassageWrite) -> None:
    """Whoever calls it has made sure that the archive, or the folder, stays."""
    await passages.insert_many(tx, write.rows)
    if write.late:
        await passages.add_late_vectors(tx, write.late, write.late_rows)


async def _passage_of(tx: Transaction, agent_id: str, passage_id: str) -> tuple[Archive, Passage]:
    await agents.require(tx, agent_id)
    archive = await archives.of_agent(tx, agent_id)
    passage = await passages.find(tx, passage_id)
    if archive is None or passage is None or passage.archive_id != archive.id:
        raise NotFound(f"Passage with id {passage_id} not found in database.")
    return archive, passage


async def _put_back(
    tx: Transaction, agent_id: str, known: Passage, changed: Passage, write: PassageWrite | None
) -> None:
    """`write`: of the new text, if it is another."""
    archive = await archives.of_agent(tx, agent_id, keep=True)
    if archive is None or archive.id != known.archive_id:
        raise ArchiveChanged(f"the agent {agent_id} has another archive now")
    stored = await (passages.find(tx, known.id, lock=True) if write is None else passages.take_out(tx, known.id))
    if stored != known:
        raise ArchiveChanged(f"the passage {known.id} was changed by somebody else")
    if write is None:
        await passages.mark(tx, changed)
    else:
        await store_passages(tx, write)


async def _give_archive(tx: Transaction, agent_id: str, archive: Archive, *, is_new: bool) -> None:
    await agents.get(tx, agent_id, lock=True)
    current = await archives.of_agent(tx, agent_id, keep=True)
    if current is not None and current.id == archive.id:
        return
    if current is not None or not is_new or await archives.is_taken(tx, archive.id):
        raise ArchiveChanged(f"the agent {agent_id} has another archive now")
    await archives.insert(tx, archive)
    await archives.attach(tx, agent_id, archive.id, is_owner=True)


async def _archive_for(tx: Transaction, agent_id: str, now_us: int) -> tuple[Archive, bool]:
    """The agent's archive, or the one to make for it: then it is new. Its id follows from the agent's, so that two
    passages that are made ready at once make the same one."""
    agent = await agents.get(tx, agent_id)
    known = await archives.of_agent(tx, agent_id)
    if known is not None:
        return known, False
    number = 1
    while await archives.is_taken(tx, made_id := ids.derive("archive", agent_id, number)):
        number += 1  # an earlier one was detached and lives on, or is being deleted
    made = Archive(
        id=made_id,
        name=f"{agent.name}'s Archive",
        description="Default archive created automatically",
        embedding=_model_of(agent),
        embedding_config=agent.embedding_config,
        created_us=now_us,
        updated_us=now_us,
    )
    return made, True


def _model_of(agent: Agent) -> str | None:
    return agent.embedding or model_in(agent.embedding_config)


def model_in(config: Mapping[str, Any] | None) -> str | None:
    """The handle of a model that is described the retired way. Its address is not used: providers are configured."""
    if config is None:
        return None
    return config.get("handle") or f"{config['embedding_endpoint_type']}/{config['embedding_model']}"


def batch_size(archive: Archive) -> int:
    """How many texts its model is given at once."""
    config = archive.embedding_config or {}
    dimension = int(config.get("embedding_dim") or _USUAL_DIMENSION)
    most = min(_LARGEST_BATCH, _LARGEST_ANSWER // (dimension * _BYTES_OF_NUMBER))
    return max(1, min(int(config.get("batch_size") or _BATCH), most))


def _changed(known: Passage, changes: PassageChange, now_us: int) -> Passage:
    return msgspec.structs.replace(
        known,
        text=known.text if changes.text is None else changes.text,
        tags=known.tags if changes.tags is None else tuple(dict.fromkeys(changes.tags)),
        metadata=known.metadata if changes.metadata is None else changes.metadata,
        updated_us=now_us,
    )


def _as_new(passage: Passage) -> NewPassage:
    return NewPassage(
        text=passage.text,
        tags=passage.tags,
        metadata=passage.metadata,
        created_us=passage.created_us,
        id=passage.id,
        file_id=passage.file_id,
    )


def _passage(archive_id: str, new: NewPassage, now_us: int) -> Passage:
    return Passage(
        id=new.id or ids.new("passage"),
        archive_id=archive_id,
        text=new.text,
        tags=tuple(dict.fromkeys(new.tags)),
        metadata=new.metadata,
        created_us=now_us if new.created_us is None else new.created_us,
        updated_us=now_us,
        file_id=new.file_id,
    )
