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
from pathlib import Path
from typing import Final, Self

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.errors import ConfigError, WrongKey
from holdfast.private_files import KEY_FILE

_KEY_BYTES: Final = 32
_FERNET: Final = b"gAAAA"  # how every Fernet token begins: its version and the upper bytes of its time
_AES_GCM: Final = b"\x01"
_NONCE_BYTES: Final = 12

_log = logging.getLogger(__name__)


class _Key(msgspec.Struct, frozen=True):
    fernet: Fernet
    aes_gcm: AESGCM  # only opens

    @classmethod
    def from_bytes(cls, key: bytes) -> Self:
        return cls(_fernet(key), AESGCM(key))

    @classmethod
    def from_passphrase(cls, passphrase: str) -> Self:
        return cls(_fernet(passphrase.encode()), AESGCM(_derived(passphrase.encode(), version=1)))


class SecretBox:
    def __init__(self, keys: Sequence[_Key], origin: str) -> None:
        """The newest key first. `origin` says where they came from, for the sentence that a wrong key earns."""
        self._newest = keys[0].fernet
        self._all = MultiFernet([key.fernet for key in keys])
        self._aes_gcm = [key.aes_gcm for key in keys]
        self._origin = origin

    @classmethod
    def from_passphrases(cls, passphrases: Sequence[str]) -> Self:
        """The newest first. Each must be strong by itself: it is stretched once per process, not slowed down."""
        return cls([_Key.from_passphrase(each) for each in passphrases], "the encryption key in the environment")

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """Uses the directory's key file, and makes one on the first start."""
        path = directory / KEY_FILE
        try:
            if not path.exists():
                _create_key_file(path)
            return cls([_Key.from_bytes(key) for key in _read_key_file(path)], str(path))
        except OSError as error:
            raise ConfigError(
                f"The key file {path} cannot be used: {error.strerror or error}. Let the server alone read it "
                "(chmod 600), or give the key in HOLDFAST_ENCRYPTION_KEY."
            ) from error

    def seal(self, text: str) -> bytes:
        return self._newest.encrypt(text.encode())

    def open(self, sealed: bytes) -> str:
        if sealed.startswith(_FERNET):
            return self._open_fernet(sealed)
        if sealed.startswith(_AES_GCM) and len(sealed) > len(_AES_GCM) + _NONCE_BYTES:
            return self._open_aes_gcm(sealed)
        raise WrongKey("A stored secret is damaged: it does not have the form that Holdfast writes.")

    def is_sealed_with_newest(self, sealed: bytes) -> bool:
        try:
            self._newest.decrypt(sealed)
        except InvalidToken:
            return False
        return True

    def _open_fernet(self, sealed: bytes) -> str:
        try:
            return self._all.decrypt(sealed).decode()
        except InvalidToken as error:
            raise self._wrong_key() from error

    def _open_aes_gcm(self, sealed: bytes) -> str:
        start = len(_AES_GCM) + _NONCE_BYTES
        for cipher in self._aes_gcm:
            try:
                return cipher.decrypt(sealed[len(_AES_GCM) : start], sealed[start:], _AES_GCM).decode()
            except InvalidTag:
                continue
        raise self._wrong_key()

    def _wrong_key(self) -> WrongKey:
        return WrongKey(
            f"A stored secret cannot be read with {self._origin}: it was sealed with another key. "
            f"Put the old key back, or set the secret again."
        )


def _fernet(key: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(_derived(key, version=2)))


def _derived(key: bytes, *, version: int) -> bytes:
    """A key of its own for each version, because one key is for one algorithm."""
    info = f"secrets at rest, version {version}".encode()
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=b"holdfast", info=info).derive(key)


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
