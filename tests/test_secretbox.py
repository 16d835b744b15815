from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from holdfast.errors import ConfigError, WrongKey
from holdfast.secretbox import KEY_FILE, SecretBox


def test_what_was_sealed_can_be_opened_and_does_not_show_through() -> None:
    box = SecretBox.from_passphrase("a long passphrase")
    sealed = box.seal("sk-ünïcode")
    assert box.open(sealed) == "sk-ünïcode"
    assert b"sk-" not in sealed
    assert box.seal("sk-ünïcode") != sealed
    assert box.open(box.seal("")) == ""


def test_the_same_passphrase_opens_after_a_restart_and_another_does_not() -> None:
    sealed = SecretBox.from_passphrase("one").seal("text")
    assert SecretBox.from_passphrase("one").open(sealed) == "text"
    with pytest.raises(WrongKey, match="sealed with another key"):
        SecretBox.from_passphrase("two").open(sealed)


@pytest.mark.parametrize("index", [0, 5, 20, -1])
def test_a_changed_byte_anywhere_is_noticed(index: int) -> None:
    box = SecretBox.from_passphrase("one")
    sealed = bytearray(box.seal("some text"))
    sealed[index] ^= 1
    with pytest.raises(WrongKey):
        box.open(bytes(sealed))
    with pytest.raises(WrongKey, match="damaged"):
        box.open(b"")


def test_the_key_file_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "data"
    sealed = SecretBox.from_directory(directory).seal("text")
    assert stat.S_IMODE((directory / KEY_FILE).stat().st_mode) == 0o600
    assert SecretBox.from_directory(directory).open(sealed) == "text"
    assert os.listdir(directory) == [KEY_FILE]


def test_many_first_starts_at_once_agree_on_one_key(tmp_path: Path) -> None:
    count = 16
    together = Barrier(count)

    def start(_: int) -> SecretBox:
        together.wait()
        return SecretBox.from_directory(tmp_path)

    with ThreadPoolExecutor(count) as pool:
        boxes = list(pool.map(start, range(count)))
    sealed = boxes[0].seal("text")
    assert {box.open(sealed) for box in boxes} == {"text"}
    assert os.listdir(tmp_path) == [KEY_FILE]


@pytest.mark.parametrize("content", ["", "not base64 !", "c2hvcnQ="])
def test_a_file_that_is_no_key_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / KEY_FILE).write_text(content)
    with pytest.raises(ConfigError, match=KEY_FILE):
        SecretBox.from_directory(tmp_path)


def test_a_key_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SecretBox.from_directory(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    SecretBox.from_directory(tmp_path)
    assert "chmod 600" in caplog.text
