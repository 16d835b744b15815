"""A real server is killed with SIGKILL while it ingests a file. The file is ingested all the same, and once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ServerProcess

KILLS = 4
LIMIT_S = 240.0
TEXT = "".join(f"Line {number} of a long text, which says {number * 7}.\n" for number in range(60_000))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Ingested:
    """The file, as its server tells of it."""

    def __init__(self, server: ServerProcess) -> None:
        self._client: Any = server.client()
        self.folder_id = self._client.folders.create(name="docs").id
        self.id = self._client.folders.files.upload(self.folder_id, file=("long.txt", TEXT.encode())).id

    def now(self, **options: Any) -> Any:
        return self._client.folders.files.retrieve(self.id, folder_id=self.folder_id, **options)

    def chunks(self) -> list[str]:
        found: list[str] = []
        path, after = f"/v1/folders/{self.folder_id}/passages?limit=1000&order=asc", ""
        while page := self._client.get(f"{path}&after={after}", cast_to=list[Any]):
            found += [passage["text"] for passage in page]
            after = page[-1]["id"]
        return found


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)  # the server has no event for it


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_file_is_ingested_once_though_its_server_is_killed_again_and_again(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    environment = {"HOLDFAST_LEASE_TTL_S": "1"}
    if database == "postgres":
        environment["HOLDFAST_DATABASE_URL"] = request.getfixturevalue("postgres_url")
    with ServerProcess(tmp_path / "holdfast", **environment) as server:
        file = Ingested(server)
        interrupted = 0
        for _ in range(KILLS):
            server.kill()
            server.start()
            interrupted += file.now().processing_status != "completed"
            stored = len(file.chunks())
            # Killed anew once it has come further.
            until(lambda stored=stored: len(file.chunks()) > stored or file.now().processing_status == "completed")
        until(lambda: file.now().processing_status in ("completed", "error"))
        done = file.now(include_content=True)
        assert interrupted >= 2
        assert (done.processing_status, done.error_message, done.content) == ("completed", None, TEXT)
        texts = file.chunks()
        assert len(texts) == len(set(texts)) == done.total_chunks
