"""Secrets at rest: AES-256-GCM under one key, from a file in the data directory or from the environment."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import secrets
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.errors import ConfigError, WrongKey
from holdfast.private_files import KEY_FILE

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_VERSION: Final = b"\x01"  # lets a later format be told apart from this one

_log = logging.getLogger(__name__)


class SecretBox:
    def __init__(self, key: bytes, origin: str) -> None:
        """`origin` says where the key came from, for the sentence that a wrong key earns."""
        self._cipher = AESGCM(key)
        self._origin = origin

    @classmethod
    def from_passphrase(cls, passphrase: str) -> Self:
        """The passphrase must be strong by itself: it is stretched once per process, not slowed down."""
        derivation = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=b"holdfast", info=b"secrets at rest, version 1")
        return cls(derivation.derive(passphrase.encode()), "the encryption key in the environment")

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
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, text.encode(), _VERSION)

    def open(self, sealed: bytes) -> str:
        start = len(_VERSION) + _NONCE_BYTES
        if not sealed.startswith(_VERSION) or len(sealed) <= start:
            raise WrongKey("A stored secret is damaged: it does not have the form that Holdfast writes.")
        try:
            return self._cipher.decrypt(sealed[len(_VERSION) : start], sealed[start:], _VERSION).decode()
        except InvalidTag as error:
            raise WrongKey(
                f"A stored secret cannot be read with {self._origin}: it was sealed with another key. "
                f"Put the old key back, or set the secret again."
            ) from error


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


def _read_key_file(path: Path) -> bytes:
    if os.name == "posix" and path.stat().st_mode & 0o077:
        _log.warning("%s can be read by other users of this machine; run: chmod 600 %s", path, path)
    try:
        key = base64.b64decode(path.read_bytes().strip(), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"{path} is not a key file of Holdfast: it must hold 32 bytes in base64.") from error
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"{path} is not a key file of Holdfast: it must hold 32 bytes in base64.")
    return key
