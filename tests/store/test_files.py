"""The text of a file is stored in parts that end anywhere, and read from any line on."""

from __future__ import annotations

import pytest

from holdfast import ids
from holdfast.core.records import File, Folder
from holdfast.store import files, folders
from holdfast.store.files import TextPart
from holdfast.store.transaction import Database, Transaction

TEXTS = {
    "short lines": "".join(f"line {number}\n" for number in range(1, 40)),
    "a line longer than a part": "one\n" + "x" * 100 + "\nthree\nfour",
    "only long lines": ("y" * 50 + "\n") * 3,
    "no line end": "z" * 90,
    "blank lines": "\n\n\na\n\n",
    "nothing": "",
}


async def a_file(database: Database, text: str, part: int) -> str:
    folder = Folder(id=ids.new("source"), name="docs", organization_id=ids.DEFAULT_ORG, chunk_size=300)
    file = File(
        id=ids.new("file"), folder_id=folder.id, name="a", original_name="a", kind="text", media_type="", size=0
    )
    parts = [text[first : first + part] for first in range(0, len(text), part)]
    before = ["".join(parts[:number]) for number in range(len(parts))]

    async def write(tx: Transaction) -> None:
        await folders.insert(tx, folder)
        assert await files.insert(tx, file)
        await files.add_text(
            tx, file.id, [TextPart(at, before[at].count("\n") + 1, one) for at, one in enumerate(parts)]
        )

    await database.write(write)
    return file.id


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("part", [1, 7, 16, 1_000])
async def test_a_text_is_read_from_any_line_on(database: Database, name: str, part: int) -> None:
    text = TEXTS[name]
    file_id = await a_file(database, text, part)
    lines = text.split("\n")
    for line in range(1, len(lines) + 3):
        rest = "\n".join(lines[line - 1 :])
        everything = await database.read(lambda tx, line=line: files.text_from(tx, file_id, line, 10_000))
        assert everything == rest
        some = await database.read(lambda tx, line=line: files.text_from(tx, file_id, line, 5))
        assert rest.startswith(some)
        assert len(some) > 5 or some == rest
    assert await database.read(lambda tx: files.whole_text(tx, file_id)) == text


async def test_a_name_is_taken_once_in_a_folder_and_free_after_a_deletion(database: Database) -> None:
    file_id = await a_file(database, "x", 10)

    async def check(tx: Transaction) -> None:
        file = await files.find(tx, file_id)
        assert file is not None
        assert not await files.insert(tx, File(**{name: getattr(file, name) for name in file.__struct_fields__}))
        await files.mark_deleted(tx, file.folder_id, file_id, 1)
        assert await files.find(tx, file_id) is None
        assert await files.marked_deleted(tx) == [file_id]
        while not await files.clear(tx, file_id):
            pass
        assert await files.any_of_folder(tx, file.folder_id) is None

    await database.write(check)
