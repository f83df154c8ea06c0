"""The packed file itself: bits without gaps, and nothing but an intact file is read."""

import json
import sys
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slb_autotune.errors import CheckpointError
from slb_autotune.export.format import METADATA_KEY, checksum, pack_bits, unpack_bits
from slb_autotune.export.packed import load_packed, save_packed
from slb_autotune.training.network import make_network
from tests.builders import tiny_config
from tests.export.reference import CPU, DIGITS, slow_pack

# Bits


def widths_and_codes() -> st.SearchStrategy[tuple[int, list[int]]]:
    def codes(bits: int) -> st.SearchStrategy[tuple[int, list[int]]]:
        numbers = st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=41)
        return st.tuples(st.just(bits), numbers)

    return st.sampled_from([1, 2, 3, 4, 8]).flatmap(codes)


@settings(max_examples=150, deadline=None)
@given(widths_and_codes())
def test_bits_are_packed_lowest_first_without_gaps(case: tuple[int, list[int]]) -> None:
    bits, codes = case
    given_codes = torch.tensor(codes, dtype=torch.uint8)
    packed = pack_bits(given_codes, bits)
    assert packed.dtype == torch.uint8
    assert bytes(packed.tolist()) == slow_pack(codes, bits)
    assert len(packed) == ceil(len(codes) * bits / 8)
    assert torch.equal(unpack_bits(packed, bits, len(codes)), given_codes)


def test_three_bits_by_hand() -> None:
    # 1 = 100, 2 = 010, 7 = 111 lowest first: 10001011|1 -> 11010001 = 209 and 1.
    assert pack_bits(torch.tensor([1, 2, 7], dtype=torch.uint8), 3).tolist() == [0b11010001, 1]


# Files that cannot be trusted


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config(weight_bits=3, activation_bits=2, activation="pact")
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("packed") / "whole.safetensors"
    return save_packed(make_network(config, DIGITS, CPU), config, path, DIGITS, {"a": 1.5})


Change = Callable[[dict[str, Tensor], dict[str, Any]], object]


def rewrite(whole: Path, path: Path, change: Change, *, sign: bool = True) -> Path:
    """The file with its tensors and header changed, and a checksum that fits again."""
    tensors = safetensors.torch.load_file(whole)
    with safetensors.safe_open(whole, framework="pt") as file:
        header = json.loads(file.metadata()[METADATA_KEY])
    change(tensors, header)
    if sign:
        header.pop("checksum")
        header["checksum"] = checksum(header, tensors)
    path.write_bytes(safetensors.torch.save(tensors, {METADATA_KEY: json.dumps(header)}))
    return path


def refused(path: Path, pattern: str) -> CheckpointError:
    with pytest.raises(CheckpointError, match=pattern) as caught:
        load_packed(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def test_rewriting_nothing_leaves_a_file_that_loads(whole: Path, tmp_path: Path) -> None:
    rewritten = load_packed(rewrite(whole, tmp_path / "n", lambda tensors, header: None))
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(rewritten(images), load_packed(whole)(images))


def test_no_part_of_a_file_loads(whole: Path, tmp_path: Path) -> None:
    content, path = whole.read_bytes(), tmp_path / "n"
    for length in (0, 1, 7, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        refused(path, "is not an intact packed network: it is not a complete safetensors file")
    path.write_bytes(content + b"\0")
    refused(path, "is not an intact packed network")


def test_one_flipped_bit_anywhere_is_found(whole: Path, tmp_path: Path) -> None:
    content, path = whole.read_bytes(), tmp_path / "n"
    where = torch.randint(len(content), (60,), generator=torch.Generator().manual_seed(1))
    for position in where.tolist():
        broken = bytearray(content)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        refused(path, "packed network|another program|format")


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_do_not_load(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "junk"
    path.write_bytes(junk)
    refused(path, "is not an intact packed network")


def test_files_of_others_do_not_load(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}))
    refused(path, "is a safetensors file of another program")
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, {"format": "pt"}))
    assert "slb-autotune export" in refused(path, "another program").hint
    torch.save({"a": torch.ones(2)}, path)
    refused(path, "not a complete safetensors file")
    refused(tmp_path / "nowhere", "cannot be read: No such file")
    refused(tmp_path, "cannot be read: Is a directory")


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", "{}", '"format"', "[" * 100_000])
def test_metadata_that_is_not_our_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, {METADATA_KEY: text}))
    refused(path, "not an intact packed network: its metadata cannot be read")


CHANGES: dict[str, tuple[Change, str]] = {
    "missing tensor": (
        lambda tensors, header: tensors.pop("fc.weight"),
        "the tensor fc.weight is missing",
    ),
    "tensor too many": (
        lambda tensors, header: tensors.update(more=torch.ones(1)),
        "the tensor more is not known",
    ),
    "codes too short": (
        lambda tensors, header: tensors.update({"layer1.0.conv1.codes": torch.zeros(53).byte()}),
        r"layer1.0.conv1.codes must be uint8 of shape \[54\]; got uint8 of shape \[53\]",
    ),
    "wrong shape": (
        lambda tensors, header: tensors.update({"fc.weight": tensors["fc.weight"].T.contiguous()}),
        r"fc.weight must be float32 of shape \[10, 16\]; got float32 of shape \[16, 10\]",
    ),
    "wrong type": (
        lambda tensors, header: tensors.update({"bn1.scale": tensors["bn1.scale"].half()}),
        r"bn1.scale must be float32 of shape \[4\]; got float16 of shape \[4\]",
    ),
    "a type that numpy does not have": (
        lambda tensors, header: tensors.update({"bn1.scale": tensors["bn1.scale"].bfloat16()}),
        r"bn1.scale must be float32 of shape \[4\]; got bfloat16 of shape \[4\]",
    ),
    "other bits": (
        lambda tensors, header: header["config"].update(weight_bits=2),
        "does not fit its own network: the tensor layer1.0.conv1.codes must be uint8",
    ),
    "later format": (
        lambda tensors, header: header.update(format=2),
        "has format 2; this version reads format 1",
    ),
    "unknown field": (
        lambda tensors, header: header.update(more=1),
        "has metadata that is not understood: .*more",
    ),
    "unknown field of the configuration": (
        lambda tensors, header: header["config"].update(colour="red"),
        "has metadata that is not understood: .*unknown key 'colour'",
    ),
    "no configuration": (
        lambda tensors, header: header.pop("config"),
        "has metadata that is not understood: .*config",
    ),
    "channels as text": (
        lambda tensors, header: header["data"].update(in_channels="one"),
        "has metadata that is not understood: .*in_channels",
    ),
    "other channels": (
        lambda tensors, header: header["data"].update(in_channels=3),
        r"conv1.weight must be float32 of shape \[4, 3, 3, 3\]; got float32 of",
    ),
    "a size below zero": (
        lambda tensors, header: header["data"].update(image_size=-8),
        "cannot be built: ",
    ),
    "a network too large for any memory": (
        lambda tensors, header: header["config"]["network"].update(width=10**7),
        "does not fit its own network",
    ),
    "unknown network": (
        lambda tensors, header: header["config"]["network"].update(name="resnet21"),
        "not understood: .*unknown network 'resnet21'",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_content_that_does_not_fit_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    change, pattern = CHANGES[name]
    refused(rewrite(whole, tmp_path / "n", change), pattern)


def test_content_that_was_changed_by_hand_is_refused(whole: Path, tmp_path: Path) -> None:
    changes: list[Change] = [
        lambda tensors, header: tensors["fc.bias"].add_(1),
        lambda tensors, header: tensors.pop("fc.bias"),
        lambda tensors, header: header["metrics"].update(a=99.0),
        lambda tensors, header: header.pop("checksum"),
    ]
    for change in changes:
        path = rewrite(whole, tmp_path / "n", change, sign=False)
        refused(path, "not an intact packed network: its checksum does not match")


def test_no_module_that_a_file_names_is_imported_unasked(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    module = tmp_path / "somebodys_module.py"
    module.write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def change(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        header["config"]["network"] = {"name": "somebodys_module:build"}

    path = rewrite(whole, tmp_path / "n", change)
    error = refused(path, "holds the network 'somebodys_module:build', and building it would run")
    assert "trust_network=True" in error.hint
    assert not marker.exists()
    assert "somebodys_module" not in sys.modules
    with pytest.raises(CheckpointError, match=r"cannot be built: .* no function 'build'"):
        load_packed(path, trust_network=True)
    assert marker.exists()
    monkeypatch.delitem(sys.modules, "somebodys_module")


@pytest.mark.parametrize(
    "network",
    [
        {"name": "torchvision:get_model", "options": {"name": "resnet18"}},
        {"name": "torchvision:resnet18", "options": {"weights": "DEFAULT"}},
        {"name": "torchvision:resnet18", "options": {"pretrained": True}},
        {"name": "torchvision.models:resnet18"},
        {"name": "slb_autotune.nets.resnet20:resnet20"},
    ],
)
def test_only_plain_builders_of_torchvision_are_ours(network, whole: Path, tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        header["config"]["network"] = network

    refused(rewrite(whole, tmp_path / "n", change), "would run code or fetch files from outside")
