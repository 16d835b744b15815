"""Folders and files over HTTP, on both databases, with the unmodified client where it has a method."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from letta_client import APIStatusError

from holdfast.actions.queries import Page
from holdfast.store import files as file_rows
from tests.api.resources import Catalog, Served, serving

UNKNOWN = "source-123e4567-e89b-42d3-8456-426614174000"
UNKNOWN_FILE = "file-123e4567-e89b-42d3-8456-426614174000"
MODEL = "acme/vectors"
ZOO = "".join(f"line {number} is about {'tigers' if number == 7 else 'bears'}\n" for number in range(1, 31))
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


async def a_folder(served: Served, name: str = "docs", **fields: Any) -> dict[str, Any]:
    return await served.ok("POST", "/v1/folders/", {"name": name, **fields})


async def uploaded(
    served: Served, folder: dict[str, Any], name: str, content: str | bytes = ZOO, /, **query: Any
) -> Any:
    answer = await sent(served, folder["id"], name, content, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def sent(
    served: Served, folder_id: str, name: str, content: str | bytes, kind: str | None = None, /, **query: Any
) -> httpx.Response:
    body = content.encode() if isinstance(content, str) else content
    file = (name, body, kind) if kind else (name, body)
    return await served.http.post(f"/v1/folders/{folder_id}/upload", files={"file": file}, params=query)


async def ingest(served: Served) -> None:
    """What a server does by itself: here nothing runs beside requests."""
    while await served.deps.tasks.sweep():
        await served.deps.tasks.settled()


async def ingested(
    served: Served, folder: dict[str, Any], name: str, content: str | bytes = ZOO, /, **query: Any
) -> Any:
    file = await uploaded(served, folder, name, content, **query)
    await ingest(served)
    return await served.ok("GET", f"/v1/folders/{folder['id']}/files/{file['id']}", include_content=True)


async def attached(served: Served, folder: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return await served.create(folder_ids=[folder["id"]], **fields)


async def call(served: Served, agent: dict[str, Any], tool: str, **arguments: Any) -> str:
    answer = await served.ok("POST", f"/v1/agents/{agent['id']}/tools/{tool}/run", {"args": arguments})
    return answer["func_return"] if answer["status"] == "success" else answer["stderr"][0]


async def open_names(served: Served, agent: dict[str, Any]) -> list[str]:
    page = await served.ok("GET", f"/v1/agents/{agent['id']}/files", is_open=True, order="asc")
    return [file["file_name"] for file in page["files"]]


async def directories(served: Served, agent: dict[str, Any]) -> str:
    return (await served.ok("GET", f"/v1/agents/{agent['id']}/context"))["directories"] or ""


def word_document(*paragraphs: str) -> bytes:
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>')
    return packed.getvalue()


class TestFolders:
    async def test_a_folder_is_made_found_changed_and_deleted(self, served: Served) -> None:
        made = await served.client.folders.create(name="docs", description="of ours", embedding=MODEL)
        assert made.id.startswith("source-")
        assert (made.name, made.description, made.embedding_config.embedding_dim) == ("docs", "of ours", 8)
        assert await served.client.folders.retrieve(made.id) == made
        assert await served.ok("GET", "/v1/folders/name/docs") == made.id
        assert await served.ok("GET", "/v1/folders/count") == 1
        changed = await served.client.folders.update(made.id, name="papers", instructions="read them")
        assert (changed.name, changed.description, changed.instructions) == ("papers", "of ours", "read them")
        assert [folder.id async for folder in served.client.folders.list(name="papers")] == [made.id]
        assert [folder.id async for folder in served.client.folders.list(name="docs")] == []
        await served.client.folders.delete(made.id)
        assert "not found" in await served.refused(404, "GET", f"/v1/folders/{made.id}")
        assert "not found" in await served.refused(404, "GET", "/v1/folders/name/papers")
        assert await served.ok("GET", "/v1/folders/count") == 0

    async def test_a_name_is_taken_once_and_free_again_after_a_deletion(self, served: Served) -> None:
        first, second = await a_folder(served), await a_folder(served, "other")
        assert "'docs'" in await served.refused(409, "POST", "/v1/folders/", {"name": "docs"})
        assert "'docs'" in await served.refused(409, "PATCH", f"/v1/folders/{second['id']}", {"name": "docs"})
        await served.ok("DELETE", f"/v1/folders/{first['id']}")
        assert (await a_folder(served))["id"] != first["id"]

    async def test_a_folder_is_no_archive(self, served: Served) -> None:
        folder = await a_folder(served, embedding=MODEL)
        await ingested(served, folder, "tea.txt", "tea for two")
        assert await served.ok("GET", "/v1/archives/") == []
        assert await served.ok("POST", "/v1/passages/search", {"query": "tea"}) == []
        assert "not found" in await served.refused(
            404, "POST", "/v1/passages/search", {"query": "tea", "archive_id": folder["id"]}
        )

    async def test_bad_requests_say_what_is_wrong(self, served: Served) -> None:
        await served.refused(422, "POST", "/v1/folders/", {})
        await served.refused(422, "POST", "/v1/folders/", {"name": ""})
        await served.refused(422, "GET", "/v1/folders/source-1")
        await served.refused(422, "GET", f"/v1/folders/{UNKNOWN}/files/file-1")
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/files"), ("GET", "/passages"), ("GET", "/agents")):
            assert "not found" in await served.refused(404, method, f"/v1/folders/{UNKNOWN}{path}")
        unknown = {"name": "x", "embedding": "nobody/nothing"}
        assert "not available" in await served.refused(400, "POST", "/v1/folders/", unknown)
        await served.refused(422, "POST", "/v1/folders/", {"name": "x", "embedding_chunk_size": 0})

    async def test_figures_of_all_folders(self, served: Served) -> None:
        folder = await a_folder(served)
        await a_folder(served, "empty")
        file = await uploaded(served, folder, "a.txt", "12345")
        assert await served.ok("GET", "/v1/folders/metadata") == {
            "total_sources": 2,
            "total_files": 1,
            "total_size": 5,
            "sources": [],
        }
        told = await served.ok("GET", "/v1/folders/metadata", include_detailed_per_source_metadata=True)
        assert [(one["source_name"], one["file_count"]) for one in told["sources"]] == [("docs", 1), ("empty", 0)]
        assert told["sources"][0]["files"] == [{"file_id": file["id"], "file_name": "a.txt", "file_size": 5}]

    async def test_the_model_of_a_folder_with_files_stays(self, served: Served) -> None:
        folder = await a_folder(served, embedding=MODEL)
        other = {"embedding_endpoint_type": "openai", "embedding_model": "other", "embedding_dim": 4}
        changed = await served.ok("PATCH", f"/v1/folders/{folder['id']}", {"embedding_config": other})
        assert changed["embedding_config"]["embedding_model"] == "other"
        await uploaded(served, folder, "a.txt")
        again = {"embedding_config": folder["embedding_config"]}
        assert "has files" in await served.refused(400, "PATCH", f"/v1/folders/{folder['id']}", again)


class TestUploading:
    async def test_a_file_is_read_and_found(self, served: Served) -> None:
        folder = await served.client.folders.create(name="docs", embedding=MODEL)
        file = await served.client.folders.files.upload(folder.id, file=("zoo.txt", ZOO.encode()))
        assert (file.processing_status, file.total_chunks, file.file_size) == ("pending", None, len(ZOO))
        assert (file.file_name, file.original_file_name, file.file_type) == ("zoo.txt", "zoo.txt", "text/plain")
        await ingest(served)
        read = await served.client.folders.files.retrieve(file.id, folder_id=folder.id, include_content=True)
        assert (read.processing_status, read.error_message, read.content) == ("completed", None, ZOO)
        assert read.total_chunks == read.chunks_embedded
        assert read.total_chunks
        listed = [found async for found in served.client.folders.files.list(folder.id)]
        assert [(found.id, found.content) for found in listed] == [(file.id, None)]
        passages = await served.ok("GET", f"/v1/folders/{folder.id}/passages", order="asc")
        assert len(passages) == read.total_chunks
        assert {(one["source_id"], one["file_id"], one["file_name"]) for one in passages} == {
            (folder.id, file.id, "zoo.txt")
        }
        assert passages[0]["text"].startswith("line 1 ")

    @pytest.mark.parametrize(
        ("name", "content", "text"),
        [
            ("a.md", b"# One\n\ntwo\r\nthree", "# One\n\ntwo\nthree"),
            (
                "a.html",
                b"<head><title>x</title><body><p>One <b>two</b></p><script>no</script><p>three",
                "x\n\nOne two\n\nthree\n",
            ),
            ("a.docx", word_document("One", "two &amp; three"), "One\ntwo & three\n"),
            ("a.json", b'{"a": [1]}', '{"a": [1]}'),
            ("a.py", "é = 1\n".encode("utf-8-sig"), "é = 1\n"),
            ("a.txt", "naïve".encode("cp1252"), "naïve"),
            ("a.csv", "a,ß".encode("utf-16"), "a,ß"),
            ("empty.txt", b"", ""),
        ],
        ids=lambda value: value if isinstance(value, str) and "." in value and " " not in value else "",
    )
    async def test_the_text_of_each_format_is_read(self, served: Served, name: str, content: bytes, text: str) -> None:
        file = await ingested(served, await a_folder(served), name, content)
        assert (file["processing_status"], file["error_message"], file["content"]) == ("completed", None, text)

    async def test_what_is_done_with_a_name_that_is_there(self, served: Served) -> None:
        folder = await a_folder(served)
        first = await ingested(served, folder, "a.txt", "one")
        second = await uploaded(served, folder, "a.txt", "two")
        third = await uploaded(served, folder, "a.txt", "three", duplicate_handling="suffix")
        assert [file["file_name"] for file in (first, second, third)] == ["a.txt", "a_(1).txt", "a_(2).txt"]
        assert {file["original_file_name"] for file in (first, second, third)} == {"a.txt"}
        skipped = await sent(served, folder["id"], "a.txt", "four", duplicate_handling="skip")
        assert (skipped.json()["id"], skipped.headers["x-upload-result"]) == (first["id"], "skipped")
        refused = await sent(served, folder["id"], "a.txt", "four", duplicate_handling="error")
        assert refused.status_code == 400
        assert "'a.txt'" in refused.json()["detail"]
        replaced = await ingested(served, folder, "a.txt", "four", duplicate_handling="replace")
        assert (replaced["file_name"], replaced["content"]) == ("a.txt", "four")
        names = [one["file_name"] for one in await served.ok("GET", f"/v1/folders/{folder['id']}/files", order="asc")]
        assert names == ["a_(1).txt", "a_(2).txt", "a.txt"]
        await served.refused(404, "GET", f"/v1/folders/{folder['id']}/files/{first['id']}")
        named = await uploaded(served, folder, "a.txt", "five", name="b.txt")
        assert named["file_name"] == "b.txt"

    async def test_a_name_that_was_chosen_may_have_folders_in_it(self, served: Served) -> None:
        folder = await a_folder(served)
        made = [await ingested(served, folder, "a.txt", "hello", name=name) for name in ("x.1/y/b", "/x.1\\y//b ")]
        assert [file["file_name"] for file in made] == ["x.1/y/b", "x.1/y/b_(1)"]
        assert {file["original_file_name"] for file in made} == {"x.1/y/b"}
        sent_as_path = await uploaded(served, folder, "home/ada/c.txt", "hello")
        assert sent_as_path["file_name"] == "c.txt"
        for name in ("../a.txt", "a/./b.txt", "/"):
            assert (await sent(served, folder["id"], "a.txt", "hello", name=name)).status_code == 400
        agent = await attached(served, folder)
        told = await call(served, agent, "open_files", file_requests=[{"file_name": "docs/x.1/y/b"}])
        assert told == "* Opened docs/x.1/y/b"

    async def test_many_uploads_of_one_name_at_once_get_names_of_their_own(self, served: Served) -> None:
        folder = await a_folder(served)
        made = await asyncio.gather(*(uploaded(served, folder, "a.txt", f"{number}") for number in range(5)))
        assert len({file["file_name"] for file in made}) == 5

    @pytest.mark.parametrize(
        ("name", "kind"), [("a.exe", "application/x-msdownload"), ("a.png", "image/png"), ("noise", None)]
    )
    async def test_what_cannot_be_read_is_refused(self, served: Served, name: str, kind: str | None) -> None:
        folder = await a_folder(served)
        answer = await sent(served, folder["id"], name, b"MZ\x00", kind or "application/octet-stream")
        assert answer.status_code == 415
        assert name in answer.json()["detail"]
        assert await served.ok("GET", f"/v1/folders/{folder['id']}/files") == []

    async def test_requests_without_a_file_are_refused_in_words(self, served: Served) -> None:
        path = f"/v1/folders/{(await a_folder(served))['id']}/upload"
        plain = await served.http.post(path, content=b"x", headers={"content-type": "text/plain"})
        assert (plain.status_code, "multipart/form-data" in plain.json()["detail"]) == (422, True)
        answer = await served.http.post(path, data={"other": "x"}, files={"wrong": ("a.txt", b"x")})
        assert (answer.status_code, "'file'" in answer.json()["detail"]) == (422, True)
        headers = {"content-type": "multipart/form-data; boundary=x"}
        cut = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhalf'
        assert "middle" in (await served.http.post(path, content=cut, headers=headers)).json()["detail"]
        assert (await served.http.post(path, content=b"nonsense", headers=headers)).status_code == 422
        unknown = await sent(served, UNKNOWN, "a.txt", "x")
        assert unknown.status_code == 404
        assert await stored_parts(served) == 0

    async def test_a_file_with_reasons_not_to_be_read_says_them(self, served: Served) -> None:
        folder = await a_folder(served)
        binary = await ingested(served, folder, "a.txt", b"a\x00b")
        assert binary["processing_status"] == "error"
        assert "NUL" in binary["error_message"]
        fake = await ingested(served, folder, "a.docx", b"PK no")
        assert "not a Word document" in fake["error_message"]
        damaged = await ingested(served, folder, "a.pdf", b"%PDF-1.4 nothing else")
        assert "PDF" in damaged["error_message"]
        assert await stored_parts(served) == 0


async def stored_parts(served: Served) -> int:
    """Of uploads."""
    return len(await served.deps.database.read(lambda tx: file_rows.find_cut_off(tx, 2**62)))


async def test_a_file_above_the_limit_is_refused_while_it_comes_in(tmp_path: Path, database_url: str) -> None:
    async with serving(database_url, tmp_path, max_file_bytes=2_000_000) as served:
        folder = await a_folder(served)
        pulled = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal pulled
            yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
            while True:
                pulled += 1
                yield b"x" * 100_000

        headers = {"content-type": "multipart/form-data; boundary=x"}
        path = f"/v1/folders/{folder['id']}/upload"
        answer = await asyncio.wait_for(served.http.post(path, content=body(), headers=headers), 30)
        assert answer.status_code == 413
        assert "HOLDFAST_MAX_FILE_BYTES" in answer.json()["detail"]
        assert pulled <= 25
        assert await stored_parts(served) == 0
        assert await served.ok("GET", f"/v1/folders/{folder['id']}/files") == []
        announced = {**headers, "content-length": str(3_000_000)}
        assert (await served.http.post(path, content=b"x" * 3_000_000, headers=announced)).status_code == 413


class TestDeleting:
    async def test_a_file_goes_with_all_that_was_made_of_it(self, served: Served) -> None:
        folder = await a_folder(served, embedding=MODEL)
        file, kept = await ingested(served, folder, "tea.txt", "tea"), await ingested(served, folder, "b.txt", "coffee")
        agent = await attached(served, folder)
        await served.client.folders.files.delete(file["id"], folder_id=folder["id"])
        await served.refused(404, "GET", f"/v1/folders/{folder['id']}/files/{file['id']}")
        await served.refused(404, "DELETE", f"/v1/folders/{folder['id']}/{file['id']}")
        left = await served.ok("GET", f"/v1/folders/{folder['id']}/passages")
        assert {passage["file_id"] for passage in left} == {kept["id"]}
        assert "tea.txt" not in await directories(served, agent)
        assert "docs/b.txt" in await call(served, agent, "semantic_search_files", query="tea")

    async def test_a_file_of_another_folder_is_not_found(self, served: Served) -> None:
        folder, other = await a_folder(served), await a_folder(served, "other")
        file = await uploaded(served, folder, "a.txt")
        for method, path in (("GET", f"files/{file['id']}"), ("DELETE", file["id"])):
            assert "not found" in await served.refused(404, method, f"/v1/folders/{other['id']}/{path}")

    async def test_deleting_a_folder_while_it_is_ingested_stops_that(self, served: Served) -> None:
        folder = await a_folder(served)
        await uploaded(served, folder, "a.txt")
        agent = await attached(served, folder)
        await served.ok("DELETE", f"/v1/folders/{folder['id']}")
        assert await served.deps.tasks.sweep() == 0
        assert await served.ok("GET", f"/v1/agents/{agent['id']}/folders") == []
        assert (await served.ok("GET", f"/v1/agents/{agent['id']}/files"))["files"] == []
        tools = await served.ok("GET", f"/v1/agents/{agent['id']}/tools")
        assert not {"open_files", "grep_files"} & {tool["name"] for tool in tools}


class TestAttaching:
    async def test_a_folder_brings_the_file_tools_and_the_last_one_takes_them_away(self, served: Served) -> None:
        agent, first, second = await served.create(), await a_folder(served), await a_folder(served, "more")
        own = len(await served.ok("GET", f"/v1/agents/{agent['id']}/tools"))
        for folder in (first, first, second):
            assert await served.client.agents.folders.attach(folder["id"], agent_id=agent["id"]) is None
        tools = {tool["name"] for tool in await served.ok("GET", f"/v1/agents/{agent['id']}/tools", limit=50)}
        assert {"open_files", "grep_files", "semantic_search_files"} <= tools
        found = [folder.name async for folder in served.client.agents.folders.list(agent["id"])]
        assert found == ["more", "docs"]
        assert await served.ok("GET", f"/v1/folders/{first['id']}/agents") == [agent["id"]]
        state = await served.ok("GET", f"/v1/agents/{agent['id']}", include="agent.sources")
        assert [source["id"] for source in state["sources"]] == [first["id"], second["id"]]
        await served.client.agents.folders.detach(first["id"], agent_id=agent["id"])
        assert len(await served.ok("GET", f"/v1/agents/{agent['id']}/tools", limit=50)) == own + 3
        await served.client.agents.folders.detach(second["id"], agent_id=agent["id"])
        assert len(await served.ok("GET", f"/v1/agents/{agent['id']}/tools", limit=50)) == own
        assert await served.ok("GET", f"/v1/agents/{agent['id']}/folders") == []
        assert await directories(served, agent) == ""

    async def test_an_agent_is_made_with_folders_and_given_others(self, served: Served) -> None:
        first, second = await a_folder(served), await a_folder(served, "more")
        agent = await served.create(source_ids=[first["id"]])
        assert [source["name"] for source in agent["sources"]] == ["docs"]
        assert "grep_files" in {tool["name"] for tool in agent["tools"]}
        changed = await served.ok("PATCH", f"/v1/agents/{agent['id']}", {"folder_ids": [second["id"]]})
        assert [source["name"] for source in changed["sources"]] == ["more"]
        cleared = await served.ok("PATCH", f"/v1/agents/{agent['id']}", {"folder_ids": []})
        assert cleared["sources"] == []
        assert "grep_files" not in {tool["name"] for tool in cleared["tools"]}
        assert UNKNOWN in await served.refused(404, "POST", "/v1/agents/", {"folder_ids": [UNKNOWN]})

    async def test_unknown_ids_are_told_from_malformed_ones(self, served: Served) -> None:
        agent, folder = await served.create(), await a_folder(served)
        for verb in ("attach", "detach"):
            await served.refused(404, "PATCH", f"/v1/agents/{agent['id']}/folders/{verb}/{UNKNOWN}")
            await served.refused(422, "PATCH", f"/v1/agents/{agent['id']}/folders/{verb}/nonsense")
            missing = agent["id"][:-4] + "0000"
            await served.refused(404, "PATCH", f"/v1/agents/{missing}/folders/{verb}/{folder['id']}")
        await served.refused(404, "PATCH", f"/v1/agents/{agent['id']}/files/{UNKNOWN_FILE}/open")
        await served.refused(404, "PATCH", f"/v1/agents/{agent['id']}/files/{UNKNOWN_FILE}/close")

    async def test_a_file_of_a_folder_that_is_not_attached_cannot_be_opened(self, served: Served) -> None:
        file = await ingested(served, await a_folder(served), "a.txt")
        agent = await served.create()
        assert "not found" in await served.refused(404, "PATCH", f"/v1/agents/{agent['id']}/files/{file['id']}/open")


class TestOpenFiles:
    async def test_those_that_were_not_opened_for_longest_make_room(self, served: Served) -> None:
        folder = await a_folder(served)
        made = [await ingested(served, folder, f"{name}.txt", name) for name in "abcd"]
        agent = await attached(served, folder, max_files_open=2)
        assert await open_names(served, agent) == ["docs/c.txt", "docs/d.txt"]
        files = served.client.agents.files
        assert await files.open(made[0]["id"], agent_id=agent["id"]) == ["docs/c.txt"]
        assert await files.open(made[3]["id"], agent_id=agent["id"]) == []
        assert await files.open(made[1]["id"], agent_id=agent["id"]) == ["docs/a.txt"]
        await files.close(made[1]["id"], agent_id=agent["id"])
        assert await open_names(served, agent) == ["docs/d.txt"]
        assert await files.close_all(agent["id"]) == ["docs/d.txt"]
        assert await files.close_all(agent["id"]) == []

    async def test_a_new_file_is_opened_for_the_agents_of_its_folder(self, served: Served) -> None:
        folder = await a_folder(served)
        agent = await attached(served, folder)
        await uploaded(served, folder, "a.txt", "something new")
        assert await open_names(served, agent) == []
        await ingest(served)
        assert await open_names(served, agent) == ["docs/a.txt"]
        assert "something new" in await directories(served, agent)

    async def test_files_are_shown_as_blocks_that_the_agent_cannot_write(self, served: Served) -> None:
        folder = await a_folder(served)
        agent = await attached(served, folder, per_file_view_window_char_limit=500)
        await ingested(served, folder, "a.txt", "one\ntwo")
        await ingested(served, folder, "b.txt", "three")
        files = await served.ok("GET", f"/v1/folders/{folder['id']}/files", order="asc")
        await served.ok("PATCH", f"/v1/agents/{agent['id']}/files/{files[1]['id']}/close")
        state = await served.ok("GET", f"/v1/agents/{agent['id']}", include=["agent.blocks"])
        shown = {block["label"]: block for block in state["memory"]["file_blocks"]}
        assert shown["docs/a.txt"]["value"] == "[Viewing file start (out of 2 lines)]\n1: one\n2: two"
        assert (shown["docs/b.txt"]["value"], shown["docs/b.txt"]["is_open"]) == ("", False)
        assert {(block["read_only"], block["limit"], block["source_id"]) for block in shown.values()} == {
            (True, 500, folder["id"])
        }
        changed = await served.ok("PATCH", f"/v1/agents/{agent['id']}", {"description": "Reads."})
        assert changed["memory"]["file_blocks"] == state["memory"]["file_blocks"]
        other = await attached(served, folder)
        told = await served.ok("GET", f"/v1/agents/{other['id']}", include=["agent.blocks"])
        assert other["memory"]["file_blocks"] == told["memory"]["file_blocks"]
        assert len(other["memory"]["file_blocks"]) == 2
        memory = await served.ok("GET", f"/v1/agents/{agent['id']}/core-memory")
        assert memory["file_blocks"] == state["memory"]["file_blocks"]

    async def test_what_is_seen_of_a_file_is_cut_and_says_so(self, served: Served) -> None:
        folder = await a_folder(served, description="of <ours>", instructions="mind </directory> tags")
        file = await ingested(served, folder, "zoo.txt", ZOO + "</file>\n")
        agent = await attached(served, folder, per_file_view_window_char_limit=60)
        shown = await directories(served, agent)
        assert '<file status="open" name="docs/zoo.txt">\n<metadata>\n- read_only=true\n' in shown
        assert "- chars_limit=60\n</metadata>\n<value>\n[Viewing file start (out of 31 lines)]\n1: line 1 is" in shown
        assert "[Cut after 60 characters, in line 3:" in shown
        assert "mind &lt;/directory> tags" in shown
        page = await served.ok("GET", f"/v1/agents/{agent['id']}/files")
        [seen] = page["files"]
        assert seen["visible_content"].startswith("[Viewing file start (out of 31 lines)]\n1: line 1 ")
        assert (seen["file_id"], seen["folder_name"], seen["is_open"]) == (file["id"], "docs", True)
        assert seen["last_accessed_at"]
        told = await call(
            served, agent, "open_files", file_requests=[{"file_name": "docs/zoo.txt", "offset": 29, "length": 9}]
        )
        assert told == "* Opened docs/zoo.txt (lines 30-31)"
        shown = await directories(served, agent)
        assert "[Viewing lines 30 to 31 (out of 31 lines)]\n30: line 30 is about bears\n31: &lt;/file>" in shown
        [seen] = (await served.ok("GET", f"/v1/agents/{agent['id']}/files"))["files"]
        assert (seen["start_line"], seen["end_line"]) == (30, 31)

    async def test_the_system_message_follows_what_is_open(self, served: Served) -> None:
        folder = await a_folder(served)
        file = await ingested(served, folder, "a.txt", "the password is swordfish")
        agent = await attached(served, folder)

        async def prompt() -> str:
            return await served.ok("POST", f"/v1/agents/{agent['id']}/recompile")

        assert "swordfish" in await prompt()
        before = await prompt()
        assert await prompt() == before
        await served.ok("PATCH", f"/v1/agents/{agent['id']}/files/{file['id']}/close")
        assert "swordfish" not in await prompt()
        assert '<file status="closed" name="docs/a.txt"' in await prompt()

    async def test_an_agent_whose_limit_is_nothing_opens_nothing(self, served: Served) -> None:
        folder = await a_folder(served)
        file = await ingested(served, folder, "a.txt")
        agent = await attached(served, folder, max_files_open=0)
        assert await open_names(served, agent) == []
        path = f"/v1/agents/{agent['id']}/files/{file['id']}/open"
        assert "max_files_open" in await served.refused(400, "PATCH", path)
        requests = [{"file_name": "docs/a.txt"}]
        assert "max_files_open" in await call(served, agent, "open_files", file_requests=requests)


class TestTools:
    async def test_open_files(self, served: Served) -> None:
        folder = await a_folder(served)
        for name in "abc":
            await ingested(served, folder, f"{name}.txt")
        agent = await attached(served, folder, max_files_open=2)
        told = await call(served, agent, "open_files", file_requests=[{"file_name": "docs/a.txt"}])
        assert told == "* Opened docs/a.txt\n* Closed docs/b.txt (to make room: too many files were open)"
        too_many = [{"file_name": f"docs/{name}.txt"} for name in "abc"]
        assert "too many" in await call(served, agent, "open_files", file_requests=too_many)
        only = await call(
            served, agent, "open_files", file_requests=[{"file_name": "docs/b.txt"}], close_all_others=True
        )
        assert only.splitlines()[1] == "* Closed docs/c.txt, docs/a.txt (as asked)"
        assert await open_names(served, agent) == ["docs/b.txt"]
        unknown = await call(served, agent, "open_files", file_requests=[{"file_name": "a.txt"}])
        assert "a.txt not attached - did you get the filename correct?" in unknown
        assert "docs/a.txt" in unknown

    async def test_grep_files(self, served: Served) -> None:
        folder = await a_folder(served)
        agent = await attached(served, folder)
        assert await call(served, agent, "grep_files", pattern="x") == "No files are currently attached to search"
        await ingested(served, folder, "zoo.txt")
        await ingested(served, folder, "code.py", "TIGERS = 1\n")
        found = await call(served, agent, "grep_files", pattern="TIGER.")
        assert found.startswith("Found 2 total matches across 2 files (showing matches 1-2 of 2)")
        assert "=== docs/zoo.txt:7 ===\n  6: line 6 is about bears\n> 7: line 7 is about tigers\n  8: line 8" in found
        only = await call(served, agent, "grep_files", pattern="tiger", include=r"\.py$", context_lines=0)
        assert "=== docs/code.py:1 ===\n> 1: TIGERS = 1\n" in only
        assert "zoo" not in only
        page = await call(served, agent, "grep_files", pattern="bears", offset=20)
        assert "(showing matches 21-29 of 29)" in page
        assert page.endswith("No more matches to show.")
        assert await call(served, agent, "grep_files", pattern="lion") == "No matches found for pattern: 'lion'"
        assert "Invalid regex pattern" in await call(served, agent, "grep_files", pattern="(")

    async def test_semantic_search_files(self, served: Served) -> None:
        folder = await a_folder(served, embedding=MODEL)
        await ingested(served, folder, "a.txt", "She had coffee.")
        await ingested(served, folder, "b.txt", "The train was late.")
        agent = await attached(served, folder)
        found = await call(served, agent, "semantic_search_files", query="beverage", limit=1)
        assert found.startswith("Found 1 semantic matches in 1 file for query: 'beverage'")
        assert "=== docs/a.txt (passage #1) ===\n  She had coffee." in found
        other = await attached(served, await a_folder(served, "other"))
        assert await call(served, other, "semantic_search_files", query="coffee") == (
            "No semantic matches found for query: 'coffee'"
        )

    async def test_without_an_embedding_model_words_find_chunks(self, served: Served) -> None:
        folder = await a_folder(served)
        file = await ingested(served, folder, "a.txt", "She had coffee.")
        assert (file["processing_status"], file["chunks_embedded"], file["total_chunks"]) == ("completed", 0, 1)
        agent = await attached(served, folder)
        assert "She had coffee." in await call(served, agent, "semantic_search_files", query="coffees")


class TestEmbedding:
    async def test_a_file_is_usable_when_its_model_cannot_be_reached(self, served: Served) -> None:
        catalog = served.deps.catalog
        assert isinstance(catalog, Catalog)
        folder = await a_folder(served, embedding=MODEL)
        agent = await attached(served, folder)
        catalog.failing = True
        file = await ingested(served, folder, "a.txt", "She had coffee.")
        assert (file["processing_status"], file["chunks_embedded"], file["total_chunks"]) == ("completed", 0, 1)
        assert "1 of 1 chunks have no vector" in file["error_message"]
        assert "coffee" in await call(served, agent, "semantic_search_files", query="coffee")
        catalog.failing = False
        await ingested(served, folder, "b.txt", "The train was late.")
        again = await served.ok("GET", f"/v1/folders/{folder['id']}/files/{file['id']}")
        assert again["chunks_embedded"] == 1
        assert "coffee" in await call(served, agent, "semantic_search_files", query="beverage", limit=1)


class TestLists:
    @pytest.mark.parametrize("order", ["asc", "desc"])
    @pytest.mark.parametrize("limit", [1, 2, 7])
    async def test_a_walk_meets_each_file_once_while_others_come_in(
        self, served: Served, limit: int, order: str
    ) -> None:
        folder = await a_folder(served)
        agent = await attached(served, folder)
        expected = {(await uploaded(served, folder, f"{number}.txt", "x"))["id"] for number in range(5)}
        of_folder: list[str] = []
        of_agent: list[str] = []
        options: dict[str, Any] = {"limit": limit, "order": order}
        async for file in served.client.folders.files.list(folder["id"], **options):
            of_folder.append(file.id)
            if len(of_folder) < 3:
                await uploaded(served, folder, f"new {len(of_folder)}.txt", "x")
        async for seen in served.client.agents.files.list(agent["id"], **options):
            of_agent.append(seen.file_id)
        for met in (of_folder, of_agent):
            assert len(met) == len(set(met))
            assert expected <= set(met)

    async def test_a_walk_goes_on_where_an_item_was_deleted(self, served: Served) -> None:
        folder = await a_folder(served)
        made = [await uploaded(served, folder, f"{number}.txt", "x") for number in range(4)]
        path = f"/v1/folders/{folder['id']}/files"
        await served.http.delete(f"/v1/folders/{folder['id']}/{made[1]['id']}")
        after = await served.ok("GET", path, order="asc", after=made[1]["id"])
        assert [file["id"] for file in after] == [made[2]["id"], made[3]["id"]]
        assert "not found" in await served.refused(404, "GET", path, after=UNKNOWN_FILE)
        agent = await attached(served, folder)
        path = f"/v1/agents/{agent['id']}/files"
        first, *rest = (await served.ok("GET", path, order="asc"))["files"]
        await served.http.delete(f"/v1/folders/{folder['id']}/{first['file_id']}")
        assert (await served.ok("GET", path, order="asc", after=first["id"]))["files"] == rest

    async def test_a_page_says_whether_there_are_more(self, served: Served) -> None:
        folder = await a_folder(served)
        agent = await attached(served, folder)
        path = f"/v1/agents/{agent['id']}/files"
        assert await served.ok("GET", path) == {"files": [], "next_cursor": None, "has_more": False}
        for number in range(3):
            await uploaded(served, folder, f"{number}.txt", "x")
        first = await served.ok("GET", path, limit=2, order="asc")
        assert first["has_more"]
        second = await served.ok("GET", path, limit=2, order="asc", cursor=first["next_cursor"])
        assert not second["has_more"]
        names = [file["file_name"] for file in first["files"] + second["files"]]
        assert names == ["docs/0.txt", "docs/1.txt", "docs/2.txt"]
        back = await served.ok("GET", path, limit=2, order="asc", before=second["files"][0]["id"])
        assert back == {**first, "has_more": False, "next_cursor": None}


class TestSources:
    """The retired name of folders."""

    async def test_both_names_speak_of_the_same(self, served: Served) -> None:
        source = await served.ok("POST", "/v1/sources/", {"name": "docs"})
        assert source["vector_db_provider"] == "native"
        assert (await served.ok("GET", f"/v1/folders/{source['id']}"))["name"] == "docs"
        assert [one["id"] for one in await served.ok("GET", "/v1/sources/")] == [source["id"]]
        answer = await served.http.post(f"/v1/sources/{source['id']}/upload", files={"file": ("a.txt", b"x")})
        file = answer.json()
        assert [one["id"] for one in await served.ok("GET", f"/v1/sources/{source['id']}/files")] == [file["id"]]
        agent = await served.create()
        changed = await served.ok("PATCH", f"/v1/agents/{agent['id']}/sources/attach/{source['id']}")
        assert [one["name"] for one in changed["sources"]] == ["docs"]
        assert await served.ok("GET", f"/v1/sources/{source['id']}/agents") == [agent["id"]]
        assert [one["id"] for one in await served.ok("GET", f"/v1/agents/{agent['id']}/sources")] == [source["id"]]
        changed = await served.ok("PATCH", f"/v1/agents/{agent['id']}/sources/detach/{source['id']}")
        assert changed["sources"] == []
        assert await served.ok("GET", "/v1/sources/count") == 1
        assert (await served.ok("GET", "/v1/sources/metadata"))["total_files"] == 1
        assert await served.ok("GET", "/v1/sources/name/docs") == source["id"]
        assert (await served.http.delete(f"/v1/sources/{source['id']}/{file['id']}")).status_code == 204
        await served.ok("DELETE", f"/v1/sources/{source['id']}")
        assert await served.ok("GET", "/v1/sources/") == []


async def test_the_client_is_told_of_refusals(served: Served) -> None:
    with pytest.raises(APIStatusError) as refused:
        await served.client.folders.files.upload(UNKNOWN, file=("a.txt", b"x"))
    assert refused.value.status_code == 404


async def test_cut_off_uploads_and_deletions_are_cleared_by_retention(served: Served) -> None:
    folder = await a_folder(served)
    await ingested(served, folder, "a.txt")
    database, now_us = served.deps.database, served.deps.clock.now_us()
    await database.write(lambda tx: file_rows.add_bytes(tx, UNKNOWN_FILE, 0, b"half", now_us - 2 * 86_400_000_000))
    [file] = await database.read(lambda tx: file_rows.list_of_folder(tx, folder["id"], Page()))
    await database.write(lambda tx: file_rows.mark_deleted(tx, folder["id"], file.id, now_us))
    await served.deps.retention.clear_deleted_files()
    assert await stored_parts(served) == 0
    assert await database.read(lambda tx: file_rows.any_of_folder(tx, folder["id"])) is None
    assert await database.read(lambda tx: file_rows.text_part(tx, file.id, 0)) is None
