"""The tags of agents and blocks. The cursor is the tag itself, so it works also when the tag is no longer used."""

from __future__ import annotations

from sqlalchemy import select, union

from holdfast.store.blocks import contains_text
from holdfast.store.paging import Page
from holdfast.store.tables import agent_tags, block_tags
from holdfast.store.transaction import Transaction


async def list_tags(tx: Transaction, text: str | None, page: Page) -> list[str]:
    """By the alphabet, each once. `text`: only tags that hold it."""
    tag = union(select(agent_tags.c.tag), select(block_tags.c.tag)).subquery().c.tag
    query = select(tag)
    if text:
        query = query.where(contains_text(tag, text))
    ascending = page.order == "asc"
    if page.after is not None:
        query = query.where(tag > page.after if ascending else tag < page.after)
    if page.before is not None:
        query = query.where(tag < page.before if ascending else tag > page.before)
    from_the_end = page.before is not None
    query = query.order_by(tag.asc() if ascending != from_the_end else tag.desc()).limit(page.limit)
    found = [row["tag"] for row in await tx.fetch_all(query)]
    return found[::-1] if from_the_end else found
