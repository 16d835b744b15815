"""Secrets at rest: Fernet under one or more keys, from a file in the data directory or from the environment.

The first key seals, and every key opens, so that a key can be replaced: see docs/security.md. What earlier versions
sealed (AES-256-GCM) is opened too, and `holdfast reseal` seals it anew.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import secrets
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from holdfast.errors import ConfigError, WrongKey
from holdfast.private_files import KEY_FILE

if TYPE_CHECKING:
    from holdfast.secret_ciphers import Ciphers

_KEY_BYTES: Final = 32

_log = logging.getLogger(__name__)


class SecretBox:
    def __init__(self, keys: Sequence[bytes], origin: str, *, passphrases: bool = False) -> None:
        """The newest key first. `origin` says where they came from, for the sentence that a wrong key earns."""
        self._keys = keys
        self._passphrases = passphrases
        self._origin = origin

    @cached_property
    def _ciphers(self) -> Ciphers:
        from holdfast.secret_ciphers import Ciphers  # noqa: PLC0415 - six megabytes that most servers never need

        return Ciphers(self._keys, passphrases=self._passphrases)

    @classmethod
    def from_passphrases(cls, passphrases: Sequence[str]) -> Self:
        """The newest first. Each must be strong by itself: it is stretched once per process, not slowed down."""
        keys = [each.encode() for each in passphrases]
        return cls(keys, "the encryption key in the environment", passphrases=True)

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """Uses the directory's key file, and makes one on the first start."""
        path = directory / KEY_FILE
        try:
            if not path.exists():
                _create_key_file(path)
            return cls(_read_key_file(path), str(path))
        except OSError as error:
            raise ConfigError(
                f"The key file {path} cannot be used: {error.strerror or error}. Let the server alone read it "
                "(chmod 600), or give the key in HOLDFAST_ENCRYPTION_KEY."
            ) from error

    def seal(self, text: str) -> bytes:
        return self._ciphers.seal(text)

    def open(self, sealed: bytes) -> str:
        text = self._ciphers.open(sealed)
        if text is None:
            raise self._wrong_key()
        return text

    def is_sealed_with_newest(self, sealed: bytes) -> bool:
        return self._ciphers.is_sealed_with_newest(sealed)

    def _wrong_key(self) -> WrongKey:
        return WrongKey(
            f"A stored secret cannot be read with {self._origin}: it was sealed with another key. "
            f"Put the old key back, or set the secret again."
        )


def _create_key_file(path: Path) -> None:
    """Written aside and linked into place, so that of two first starts both end up with the same whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        _log.debug("another process made %s first", path)
    finally:
        aside.unlink()


def _read_key_file(path: Path) -> list[bytes]:
    """One key per line, the newest first."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        _log.warning("%s can be read by other users of this machine; run: chmod 600 %s", path, path)
    try:
        keys = [base64.b64decode(line, validate=True) for line in path.read_bytes().split()]
    except binascii.Error:
        keys = []
    if not keys or any(len(key) != _KEY_BYTES for key in keys):
        raise ConfigError(f"{path} is not a key file of Holdfast: each line must hold 32 bytes in base64.")
    return keys
