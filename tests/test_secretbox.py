from __future__ import annotations

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from holdfast.errors import ConfigError, WrongKey
from holdfast.secretbox import KEY_FILE, SecretBox


def test_what_was_sealed_can_be_opened_and_does_not_show_through() -> None:
    box = SecretBox.from_passphrases(["a long passphrase"])
    sealed = box.seal("sk-ünïcode")
    assert box.open(sealed) == "sk-ünïcode"
    assert b"sk-" not in sealed
    assert box.seal("sk-ünïcode") != sealed
    assert box.open(box.seal("")) == ""


def test_the_same_passphrase_opens_after_a_restart_and_another_does_not() -> None:
    sealed = SecretBox.from_passphrases(["one"]).seal("text")
    assert SecretBox.from_passphrases(["one"]).open(sealed) == "text"
    with pytest.raises(WrongKey, match="sealed with another key"):
        SecretBox.from_passphrases(["two"]).open(sealed)


@pytest.mark.parametrize("index", [0, 5, 20, -1])
def test_a_changed_byte_anywhere_is_noticed(index: int) -> None:
    box = SecretBox.from_passphrases(["one"])
    sealed = bytearray(box.seal("some text"))
    sealed[index] ^= 1
    with pytest.raises(WrongKey):
        box.open(bytes(sealed))
    with pytest.raises(WrongKey, match="damaged"):
        box.open(b"")


# What the version before Fernet wrote, with the passphrase of the tests above, and with the key file beside it.
SEALED_BEFORE = base64.b64decode("Af6QIoDp1LDTQAB4u5zH+4JEMn6XoA62zvcZggQG8YQ3rh3eAVKfcCY=")
KEY_BEFORE = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
SEALED_BEFORE_WITH_FILE = base64.b64decode("AWMqZ+xjg4gDnqyNOVBHoefH5jF8+jhV9Dq58nlK7iud8bkrdLVyaDg=")


def test_what_earlier_versions_sealed_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text(KEY_BEFORE + "\n")
    for box, sealed in (
        (SecretBox.from_passphrases(["a long passphrase"]), SEALED_BEFORE),
        (SecretBox.from_passphrases(["a newer one", "a long passphrase"]), SEALED_BEFORE),
        (SecretBox.from_directory(tmp_path), SEALED_BEFORE_WITH_FILE),
    ):
        assert box.open(sealed) == "sk-ünïcode"
        assert not box.is_sealed_with_newest(sealed)
    with pytest.raises(WrongKey, match="sealed with another key"):
        SecretBox.from_passphrases(["another"]).open(SEALED_BEFORE)
    with pytest.raises(WrongKey, match="damaged"):
        SecretBox.from_passphrases(["another"]).open(SEALED_BEFORE[:13])


def test_a_new_key_seals_and_the_old_one_still_opens() -> None:
    sealed = SecretBox.from_passphrases(["old"]).seal("text")
    both = SecretBox.from_passphrases(["new", "old"])
    assert both.open(sealed) == "text"
    assert not both.is_sealed_with_newest(sealed)
    again = both.seal("text")
    assert both.is_sealed_with_newest(again)
    assert SecretBox.from_passphrases(["new"]).open(again) == "text"
    with pytest.raises(WrongKey):
        SecretBox.from_passphrases(["old"]).open(again)


def test_a_key_file_may_hold_several_keys_newest_first(tmp_path: Path) -> None:
    sealed = SecretBox.from_directory(tmp_path).seal("text")
    path = tmp_path / KEY_FILE
    path.write_text(f"{KEY_BEFORE}\n{path.read_text()}")
    both = SecretBox.from_directory(tmp_path)
    assert both.open(sealed) == "text"
    again = both.seal("text")
    path.write_text(KEY_BEFORE)
    assert SecretBox.from_directory(tmp_path).open(again) == "text"


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


@pytest.mark.parametrize("content", ["", "not base64 !", "c2hvcnQ=", KEY_BEFORE + "\nc2hvcnQ="])
def test_a_file_that_is_no_key_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / KEY_FILE).write_text(content)
    with pytest.raises(ConfigError, match=KEY_FILE):
        SecretBox.from_directory(tmp_path)


def test_a_key_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SecretBox.from_directory(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    SecretBox.from_directory(tmp_path)
    assert "chmod 600" in caplog.text
