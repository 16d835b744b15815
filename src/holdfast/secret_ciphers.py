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

from holdfast.errors import WrongKey

_KEY_BYTES: Final = 32
_FERNET: Final = b"gAAAA"  # how every Fernet token begins: its version and the upper bytes of its time
_AES_GCM: Final = b"\x01"
_NONCE_BYTES: Final = 12


class Ciphers:
    def __init__(self, keys: Sequence[bytes], *, passphrases: bool) -> None:
        """The newest key first. `passphrases`: they have any length."""
        fernets = [Fernet(base64.urlsafe_b64encode(_derived(key, version=2))) for key in keys]
        self._newest = fernets[0]
        self._all = MultiFernet(fernets)
        self._aes_gcm = [AESGCM(_derived(key, version=1) if passphrases else key) for key in keys]

    def seal(self, text: str) -> bytes:
        return self._newest.encrypt(text.encode())

    def open(self, sealed: bytes) -> str | None:
        """None when it was sealed with another key."""
        if sealed.startswith(_FERNET):
            return self._open_fernet(sealed)
        if sealed.startswith(_AES_GCM) and len(sealed) > len(_AES_GCM) + _NONCE_BYTES:
            return self._open_aes_gcm(sealed)
        raise WrongKey("A stored secret is damaged: it does not have the form that Holdfast writes.")

    def _open_fernet(self, sealed: bytes) -> str | None:
        try:
            return self._all.decrypt(sealed).decode()
        except InvalidToken:
            return None

    def _open_aes_gcm(self, sealed: bytes) -> str | None:
        start = len(_AES_GCM) + _NONCE_BYTES
        for cipher in self._aes_gcm:
            try:
                return cipher.decrypt(sealed[len(_AES_GCM) : start], sealed[start:], _AES_GCM).decode()
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
