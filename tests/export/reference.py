"""What the tests of the packed file share: the data of the digits, and a slow bit packer."""

from __future__ import annotations

import torch

from slb_autotune.data.base import DataInfo

CPU = torch.device("cpu")
DIGITS = DataInfo("classification", in_channels=1, num_classes=10, image_size=8)


def slow_pack(codes: list[int], bits: int) -> bytes:
    """Write every code as text, lowest bit first, and cut the text into bytes."""
    text = "".join(format(code, f"0{bits}b")[::-1] for code in codes)
    parts = [text[i : i + 8] for i in range(0, len(text), 8)]
    return bytes(int(part.ljust(8, "0")[::-1], 2) for part in parts)
