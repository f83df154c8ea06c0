"""Seeds of a study's decisions, each from what it is for."""

from __future__ import annotations

import hashlib


def seed_of(*parts: object) -> int:
    """A 32-bit seed that depends on every part."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
