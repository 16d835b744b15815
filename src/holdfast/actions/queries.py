"""What a list is asked for: which items, and which page of them.

The store applies these values and therefore defines them. Routes take them from here, because `api` does not import
the store (decision 25).
"""

from __future__ import annotations

from typing import TypeVar

from holdfast.store.agents import AgentFilter
from holdfast.store.blocks import BlockFilter
from holdfast.store.groups import GroupFilter
from holdfast.store.identities import IdentityFilter
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.steps import StepFilter
from holdfast.store.threads import ThreadFilter
from holdfast.store.tools import ToolFilter
from holdfast.store.transaction import Database, Job

__all__ = [
    "AgentFilter",
    "BlockFilter",
    "GroupFilter",
    "IdentityFilter",
    "Page",
    "RunFilter",
    "StepFilter",
    "ThreadFilter",
    "ToolFilter",
    "read_page",
]

T = TypeVar("T")


async def read_page(database: Database, job: Job[T], page: Page) -> T:
    """A long page is not read on the event loop, where it would hold up every other request."""
    return await (database.read_long(job) if page.is_long else database.read(job))
