"""The key of an encrypted file: what SQLite is told, and whether it fits a file that is there already."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from functools import lru_cache
from pathlib import Path
from typing import cast

from recollect.errors import BadSettings
from recollect.settings import Secret, Settings

SALT = 16
"""So many bytes at the start of an encrypted file are not encrypted: they say by what the key is made."""

_NONCE = 12
_RANDOM = re.compile(r"[0-9a-fA-F]{64}")
_SHORTEST = 16
# As slow as is advised for scrypt with little memory: a sixth of a second and 16 MiB, once for each opening.
_SCRYPT = {"n": 2**14, "r": 8, "p": 5}


class Key:
    """What the owner of a store gave: 64 hexadecimal digits from a random source, or a passphrase. Never shown.

    The file begins with 16 bytes: twelve at random, by which its key is made, and four that only this key can make of
    them. So another key is known for another before SQLite touches the file or its log.
    """

    __slots__ = ("_secret",)

    def __init__(self, text: str) -> None:
        if len(text) < _SHORTEST:
            raise BadSettings(
                f"an encryption key has {_SHORTEST} characters or more; `recollect key new FILE` makes a good one"
            )
        self._secret = Secret(text)

    def __repr__(self) -> str:
        return "Key(not shown)"

    def fresh_salt(self) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._mark(nonce)

    def fits(self, salt: bytes) -> bool:
        """Whether a file that begins so was encrypted with this key."""
        return hmac.compare_digest(salt[_NONCE:SALT], self._mark(salt[:_NONCE]))

    def told(self, salt: bytes) -> str:
        """What SQLite is told: the key of the pages, and the salt for a file that has none yet."""
        pages = hashlib.blake2b(b"pages", key=_master(self._secret, salt[:_NONCE]), digest_size=32)
        return f"raw:{pages.hexdigest()}{salt.hex()}"

    def _mark(self, nonce: bytes) -> bytes:
        return hashlib.blake2b(b"mark", key=_master(self._secret, nonce), digest_size=SALT - _NONCE).digest()


@lru_cache(maxsize=16)
def _master(secret: Secret, nonce: bytes) -> bytes:
    """One for each file. A passphrase is stretched, which is slow; every connection of a store asks for it."""
    text = secret.reveal()
    if _RANDOM.fullmatch(text):
        return hashlib.blake2b(nonce, key=bytes.fromhex(text), digest_size=32).digest()
    return hashlib.scrypt(text.encode(), salt=nonce, dklen=32, **_SCRYPT)


def key_of(settings: Settings) -> Key | None:
    """The key that the settings give, or say where to find; None when stores are not encrypted."""
    given, file = settings.encryption_key, settings.encryption_key_file
    if given and file:
        raise BadSettings("encryption_key and encryption_key_file are both set; keep one of them")
    if file:
        return key_in(Path(file))
    if not given:
        return None
    return Key(cast(Secret, given).reveal())  # as settings keep it, whichever way it was given


def key_in(file: Path) -> Key:
    """The key that a file holds; one that others on this machine may read is no secret."""
    path = Path(os.path.abspath(file.expanduser()))
    try:
        if path.exists() and not path.is_file():
            raise BadSettings(
                f"{path} is no file; name the one that holds the key (`recollect key new FILE` makes one)"
            )
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise BadSettings(f"others can read the key in {path}; run chmod 600 {path}")
        text = path.read_text("utf-8").strip()
    except UnicodeDecodeError as error:
        raise BadSettings(f"the key in {path} is not text; `recollect key new FILE` makes one that is") from error
    except OSError as error:
        raise BadSettings(
            f"the key in {path} cannot be read: {error.strerror}; name the file that it is in, and be its owner"
        ) from error
    return Key(text)


def new_key_file(file: Path) -> Path:
    """A key at random in a new file that only its owner can read."""
    path = Path(os.path.abspath(file.expanduser()))
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise BadSettings(f"no key can be written to {path}: {error.strerror}; name a new file") from error
    return path
