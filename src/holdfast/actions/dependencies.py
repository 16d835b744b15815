"""The assembled server: what `wiring` builds, and what actions are given parts of."""

from __future__ import annotations

import msgspec

from holdfast.actions.folders.upload import UploadFile
from holdfast.actions.groups.discuss import Discuss
from holdfast.actions.messages.send import SendMessage
from holdfast.actions.monitoring import Metrics
from holdfast.actions.runs.cancel import CancelRuns
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.clock import Clock
from holdfast.engine.compacting import Compactor
from holdfast.engine.feed import Feed
from holdfast.engine.mcp_servers import McpServers
from holdfast.engine.retention import Retention
from holdfast.engine.run_reader import RunReader
from holdfast.engine.streams import Streams
from holdfast.engine.tasks import TaskWorker
from holdfast.engine.worker import Worker
from holdfast.llm.base import Catalog
from holdfast.secretbox import SecretBox
from holdfast.settings import Settings
from holdfast.store.transaction import Database
from holdfast.tools.base import Sandbox


class Holdfast(msgspec.Struct, frozen=True, kw_only=True):
    """Routes pass it, or parts of it, to actions. Only actions and the engine use its database."""

    settings: Settings
    secretbox: SecretBox
    catalog: Catalog
    sandbox: Sandbox
    database: Database
    clock: Clock
    worker: Worker
    tasks: TaskWorker
    streams: Streams
    feed: Feed
    reader: RunReader
    retention: Retention
    compactor: Compactor
    archival: ArchivalMemory
    mcp: McpServers
    upload: UploadFile
    send: SendMessage
    discuss: Discuss
    cancel: CancelRuns
    metrics: Metrics
