"""Seeds, each derived from its purpose."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object, bits: int = 63) -> int:
    """A seed of `bits` bits that depends on every part: `derive_seed(seed, "epoch", 3)`."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - bits)
