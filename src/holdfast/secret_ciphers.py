"""The ciphers of `secretbox`. Imported when the first secret is sealed or opened: most servers have none, and the
library takes six megabytes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_VERSION: Final = b"\x01"  # the first byte of what AES-GCM sealed


class Ciphers:
    def __init__(self, keys: Sequence[bytes], *, passphrases: bool) -> None:
        """The newest key first. `passphrases`: they have any length."""
        fernets = [Fernet(base64.urlsafe_b64encode(_derived(key, version=2))) for key in keys]
        self._newest = fernets[0]
        self._all = MultiFernet(fernets)
        self._aes_gcm = [AESGCM(_derived(key, version=1) if passphrases else key) for key in keys]

    def seal(self, text: str) -> bytes:
        return self._newest.encrypt(text.encode())

    def open_fernet(self, sealed: bytes) -> str | None:
        """None when it was sealed with another key."""
        try:
            return self._all.decrypt(sealed).decode()
        except InvalidToken:
            return None

    def open_aes_gcm(self, sealed: bytes) -> str | None:
        start = len(_VERSION) + _NONCE_BYTES
        for cipher in self._aes_gcm:
            try:
                return cipher.decrypt(sealed[len(_VERSION) : start], sealed[start:], _VERSION).decode()
            except InvalidTag:
                continue
        return None

    def is_sealed_with_newest(self, sealed: bytes) -> bool:
        try:
            self._newest.decrypt(sealed)
        except InvalidToken:
            return False
        return True


def _derived(key: bytes, *, version: int) -> bytes:
    """A key of its own for each version, because one key is for one algorithm."""
    info = f"secrets at rest, version {version}".encode()
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=b"holdfast", info=info).derive(key)
