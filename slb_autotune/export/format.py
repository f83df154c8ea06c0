"""The packed low-bit file: what inference needs of a trained network, and nothing else.

It is a safetensors file. For a layer or parameter NAME of the network it holds

    NAME.codes              uint8: the index of each low-bit weight, `bits` bits each, lowest first
    NAME.alpha, ...         float32: a rival's scale factors or learned levels; SLB has none
    NAME.scale, NAME.shift  float32: a BN as eval mode computes it, y * scale + shift
    NAME                    float32: every other parameter, as it was trained

and, under one key of its metadata, JSON with the trial's configuration. The bytes of the tensors
are `size_bytes` as `slb_autotune.cost` defines it. Reading a file runs no code from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from slb_autotune.config.files import write_atomically
from slb_autotune.config.trial import TrialConfig
from slb_autotune.data.base import DataInfo
from slb_autotune.errors import CheckpointError, SlbError

FORMAT = 1
# safetensors writes several metadata keys in random order; one key keeps files reproducible.
METADATA_KEY = "slb_autotune"


@dataclass(frozen=True)
class Packed:
    """The content of a packed file."""

    config: TrialConfig
    info: DataInfo
    metrics: dict[str, float | None]
    version: str
    tensors: dict[str, Tensor]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors: the network's `size_bytes`."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class _Header(BaseModel):
    """The metadata of the file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: int
    version: str
    config: dict[str, Any]
    data: DataInfo
    metrics: dict[str, float | None]
    checksum: str


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes as a stream of `bits` bits each, lowest bit first, in ceil(codes * bits / 8) bytes."""
    shifts = torch.arange(bits, dtype=torch.uint8, device=codes.device)
    stream = (codes.reshape(-1, 1) >> shifts).bitwise_and_(1).view(-1)
    stream = F.pad(stream, (0, -len(stream) % 8)).view(-1, 8)
    shifts = torch.arange(8, dtype=torch.uint8, device=codes.device)
    return (stream << shifts).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes that were given to `pack_bits`, as uint8."""
    stream = (packed.view(-1, 1) >> torch.arange(8, dtype=torch.uint8)).bitwise_and_(1)
    shifts = torch.arange(bits, dtype=torch.uint8)
    return (stream.view(-1)[: count * bits].view(count, bits) << shifts).sum(1, dtype=torch.uint8)


def checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the header and every tensor: nothing else detects a flipped bit of a weight."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_packed(packed: Packed, path: Path) -> None:
    """Write the file atomically; the same content gives the same bytes."""
    header = {
        "format": FORMAT,
        "version": packed.version,
        "config": packed.config.to_mapping(),
        "data": asdict(packed.info),
        "metrics": packed.metrics,
    }
    header["checksum"] = checksum(header, packed.tensors)
    text = json.dumps(header, sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, safetensors.torch.save(packed.tensors, {METADATA_KEY: text}))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}", "choose another path."
        ) from error


def read_packed(path: Path) -> Packed:
    """The content of a packed file, checked; the network is not built."""
    tensors, text = _read_tensors(Path(path))
    try:
        values = json.loads(text)
        known = values["format"] == FORMAT
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise _damaged(path, "its metadata cannot be read") from error
    if not known:
        raise CheckpointError(
            f"{path} has format {values['format']!r}; this version reads format {FORMAT}",
            "read it with the version of slb_autotune that wrote it.",
        )
    if values.pop("checksum", None) != checksum(values, tensors):
        raise _damaged(path, "its checksum does not match")
    try:
        header = _Header.model_validate_json(text)
        config = TrialConfig.from_mapping(header.config)
    except (ValidationError, SlbError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} has metadata that is not understood: {reason}") from error
    return Packed(config, header.data, header.metrics, header.version, tensors)


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors, each in memory of its own, and our metadata."""
    try:
        # Raises an OSError with a reason, which safetensors does not give.
        path.open("rb").close()
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{path} cannot be read: {reason}", "check the path.") from error
    except Exception as error:  # safetensors raises many kinds on a damaged file
        raise _damaged(path, "it is not a complete safetensors file") from error
    if METADATA_KEY not in metadata:
        raise CheckpointError(
            f"{path} is a safetensors file of another program",
            "`slb-autotune export` writes packed networks.",
        )
    return tensors, metadata[METADATA_KEY]


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not an intact packed network: {reason}", "copy the file or export it again."
    )
