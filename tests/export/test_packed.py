"""The packed file: the same predictions to the bit, in exactly `size_bytes` bytes."""

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
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import estimate, profile, size_bytes
from slb_autotune.data.base import DataInfo
from slb_autotune.errors import CheckpointError, ConversionError
from slb_autotune.export.packed import (
    METADATA_KEY,
    FoldedNorm2d,
    PackedConv2d,
    checksum,
    load_packed,
    pack_bits,
    pack_run,
    read_packed,
    save_packed,
    unpack_bits,
)
from slb_autotune.quant import SLBConv2d, SLBLayer, StateBatchNorm2d, quantize
from slb_autotune.training.evaluation import evaluate, measure
from slb_autotune.training.loop import TrainResult, train
from slb_autotune.training.network import formatted, make_network
from slb_autotune.version import VERSION
from tests.builders import CIFAR, tiny_config

HERE = __name__  # networks of this module are a user's own: `module:function`
DIGITS = DataInfo("classification", in_channels=1, num_classes=10, image_size=8)
CPU = torch.device("cpu")


# Bits


def slow_pack(codes: list[int], bits: int) -> bytes:
    """Write every code as text, lowest bit first, and cut the text into bytes."""
    text = "".join(format(code, f"0{bits}b")[::-1] for code in codes)
    parts = [text[i : i + 8] for i in range(0, len(text), 8)]
    return bytes(int(part.ljust(8, "0")[::-1], 2) for part in parts)


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


# The same predictions, in size_bytes bytes


class Grouped(nn.Module):
    """A user's network: groups, dilation, biases, a layer used twice, a BN behind a pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor([0.5]))
        self.gain = nn.Parameter(torch.tensor([1.5]))
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.grouped = nn.Conv2d(6, 12, 3, padding="same", groups=3, dilation=2)
        self.bn = nn.BatchNorm2d(12, affine=False)
        self.act = nn.PReLU(12)
        self.twice = nn.Conv2d(12, 12, (1, 3), padding=(0, 1), groups=12)
        self.alias = self.twice
        self.pool = nn.AvgPool2d(2)
        self.late = nn.BatchNorm2d(12)
        self.last = nn.Conv2d(12, 5, 1, bias=False)
        self.fc = nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first((x - self.centre) * self.gain)
        x = self.act(self.bn(self.grouped(x)))
        x = self.late(self.pool(self.alias(self.twice(x))))
        return self.fc(self.last(x).mean(dim=(2, 3)))


grouped = Grouped

VGG = {"network.name": "vgg_small"}
CASES: dict[str, dict[str, Any]] = {
    "1 bit": {},
    "2 bits, paper": {"weight_bits": 2, "norm.mode": "paper"},
    "3 bits, off": {"weight_bits": 3, "norm.mode": "off"},
    "4 bits, plain layout": {**VGG, "weight_bits": 4, "channels_last": False},
    "8 bits": {**VGG, "weight_bits": 8},
    "mixed": {"weight_bits": {"layer1.*": 1, "layer2.0.*": 3, "layer2.0.conv2": 8}},
    "1/1 dorefa, off": {**VGG, "activation_bits": 1, "norm.mode": "off"},
    "2/2 dorefa": {"weight_bits": 2, "activation_bits": 2},
    "1/1 sign, paper": {"activation_bits": 1, "activation": "sign", "norm.mode": "paper"},
    "3/2 pact": {"weight_bits": 3, "activation_bits": 2, "activation": "pact"},
    "prelu, paper": {"network.options": {"order": "conv_prelu_bn"}, "norm.mode": "paper"},
    "float": {"method": "float"},
    "vgg_small 3/2, paper": {
        **VGG,
        "weight_bits": 3,
        "activation_bits": 2,
        "norm.mode": "paper",
    },
    "grouped": {"network.name": f"{HERE}:grouped", "width": None, "weight_bits": 3},
    "grouped 1/1": {
        "network.name": f"{HERE}:grouped",
        "width": None,
        "activation_bits": 1,
        "activation": "pact",
    },
}

VDSR = {
    "network": {"name": "vdsr", "width": 5, "options": {"depth": 4}},
    "data": {"name": "photos", "patches": 32, "patch": 16},
    "optimizer": {"name": "adam", "lr": 1e-3},
    "batch_size": 16,
    "epochs": 1,
    "norm.batches": 1,
    "device": "cpu",
}
VDSR_CASES: dict[str, dict[str, Any]] = {
    "vdsr": {},
    "vdsr, tail quantised": {"keep_float": [], "weight_bits": 2, "norm.mode": "paper"},
    "vdsr, off": {"norm.mode": "off", "activation_bits": 2, "weight_bits": 4},
}

TRIALS = {name: tiny_config(**changes) for name, changes in CASES.items()}
TRIALS |= {
    name: TrialConfig.from_mapping(VDSR).updated(changes) for name, changes in VDSR_CASES.items()
}


def inputs(config: TrialConfig) -> Tensor:
    """Real images: the whole validation part, and pictures larger than the patches."""
    _, val = data.load_train(config.data)
    assert val is not None
    return formatted(next(iter(val.batches(64)))[0], config)


def save(result: TrainResult, path: Path) -> Path:
    config = result.config
    return save_packed(result.network, config, path, data.info(config.data), result.metrics)


@pytest.mark.parametrize("name", TRIALS)
def test_a_trained_network_comes_back_to_the_bit_in_size_bytes(name: str, tmp_path: Path) -> None:
    config = TRIALS[name]
    result = train(config)
    path = save(result, tmp_path / "network.safetensors")
    loaded = load_packed(path, trust_network=True)

    images = inputs(config)
    with torch.no_grad():
        expected = result.network(images)
        assert torch.equal(loaded(images), expected)
    assert torch.isfinite(expected).all()
    assert expected.std() > 0

    # The payload, read by safetensors alone, is size_bytes as cost.py has it: estimated before
    # training, and profiled after it.
    payload = sum(tensor.nbytes for tensor in safetensors.torch.load_file(path).values())
    info = data.info(config.data)
    assert payload == result.metrics["size_bytes"] == read_packed(path).payload_bytes
    shape = (info.in_channels, info.image_size, info.image_size)
    assert payload == size_bytes(profile(result.network, shape))

    kinds = {type(module) for module in loaded.modules()}
    assert not any(issubclass(kind, SLBLayer | StateBatchNorm2d) for kind in kinds)
    assert not any(issubclass(kind, nn.BatchNorm2d) for kind in kinds)
    assert (PackedConv2d in kinds) == config.quantises
    assert not any(module.training for module in loaded.modules())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_every_code_of_the_file_is_the_argmax_of_its_layer(tmp_path: Path) -> None:
    config = tiny_config(weight_bits={"layer1.*": 2, "layer2.*": 3, "layer3.*": 8})
    network = make_network(config, DIGITS, CPU)
    path = save_packed(network, config, tmp_path / "n", DIGITS)
    tensors = safetensors.torch.load_file(path)
    layers = {k: m for k, m in network.named_modules() if isinstance(m, SLBConv2d)}
    assert len(layers) == 6
    for name, layer in layers.items():
        codes = layer.logits.argmax(0).flatten().tolist()
        assert bytes(tensors[f"{name}.codes"].tolist()) == slow_pack(codes, layer.bits)
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.uint8", "torch.float32"}


def test_the_size_that_the_blueprint_states(tmp_path: Path) -> None:
    config = TrialConfig.from_mapping({"network": "resnet20", "data": "cifar10"})
    path = save_packed(make_network(config, CIFAR, CPU), config, tmp_path / "n", CIFAR)
    assert read_packed(path).payload_bytes == 43_240
    # On disk only names and the configuration come on top.
    assert path.stat().st_size < 43_240 + 16_000


def test_the_loaded_network_holds_no_logits(tmp_path: Path) -> None:
    config = tiny_config(weight_bits=8)
    network = make_network(config, DIGITS, CPU)
    loaded = load_packed(save_packed(network, config, tmp_path / "n", DIGITS))

    def numbers(of: nn.Module) -> int:
        return sum(tensor.numel() for tensor in (*of.parameters(), *of.buffers()))

    plain = make_network(tiny_config(method="float"), DIGITS, CPU)
    assert numbers(loaded) <= numbers(plain)
    assert numbers(network) > 100 * numbers(loaded)


# A float network, and BNs that stay plain


def test_no_batch_norm_of_a_float_network_stays_plain() -> None:
    network = make_network(tiny_config(method="float"), DIGITS, CPU)
    kinds = [type(module) for module in network.modules()]
    assert nn.BatchNorm2d not in kinds
    assert kinds.count(StateBatchNorm2d) == 7


class Helper(nn.Module):
    """A BN that inference never reaches, beside one that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3)
        self.bn = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3)
        self.second_bn = nn.BatchNorm2d(32)
        self.aside = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        if self.training:
            x = self.aside(x)
        return self.fc(self.second_bn(self.second(x)).mean(dim=(2, 3)))


class Direct(Helper):
    """A BN that is called without its hooks, so that nobody can see it run."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.aside.forward(self.bn(self.conv(x)))
        return self.fc(self.second_bn(self.second(x)).mean(dim=(2, 3)))


class Flat(Helper):
    """Statistics in a BatchNorm1d, which quantize() leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second_bn(self.second(self.bn(self.conv(x)))).mean(dim=(2, 3))
        return self.fc(self.flat(x))


def own_network(function: type[nn.Module]) -> TrialConfig:
    return tiny_config(**{"network.name": f"{HERE}:{function.__name__}", "width": None})


def test_a_batch_norm_that_inference_never_reaches_is_counted_and_packed(tmp_path: Path) -> None:
    result = train(own_network(Helper))
    assert type(result.network.aside) is nn.BatchNorm2d
    assert result.network.aside.running_mean.abs().sum() > 0
    path = save(result, tmp_path / "n")
    loaded = load_packed(path, trust_network=True)
    images = inputs(result.config)
    assert torch.equal(loaded(images), result.network(images))
    assert isinstance(loaded.aside, FoldedNorm2d)
    assert read_packed(path).payload_bytes == estimate(result.config, DIGITS).size_bytes


@pytest.mark.parametrize(("function", "name"), [(Direct, "aside"), (Flat, "flat")])
def test_what_would_not_predict_the_same_is_not_written(function, name, tmp_path: Path) -> None:
    config, path = own_network(function), tmp_path / "n"
    network = make_network(config, DIGITS, CPU)
    norm = network.get_submodule(name)
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.normal_()
    norm.running_var.uniform_(0.5, 2)
    path.write_bytes(b"what was here before")
    with pytest.raises(ConversionError, match=r"does not predict the same.*BatchNorm1d"):
        save_packed(network, config, path, DIGITS)
    assert path.read_bytes() == b"what was here before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_network_that_is_not_the_configurations_is_not_written(tmp_path: Path) -> None:
    network = make_network(tiny_config(weight_bits=2), DIGITS, CPU)
    with pytest.raises(
        ConversionError, match=r"not the one .* layer1.0.conv1.codes must be uint8"
    ):
        save_packed(network, tiny_config(weight_bits=3), tmp_path / "n", DIGITS)
    with pytest.raises(ConversionError, match=r"conv1.weight is float64; a packed file holds"):
        save_packed(network.double(), tiny_config(weight_bits=2), tmp_path / "n", DIGITS)
    linear = quantize(Helper(), 1, example_input=torch.zeros(1, 1, 8, 8), include_linear=True)
    with pytest.raises(ConversionError, match=r"the tensor fc.codes is not known"):
        save_packed(linear, own_network(Helper), tmp_path / "n", DIGITS)
    assert list(tmp_path.iterdir()) == []


# Writing


def test_the_same_network_gives_the_same_bytes_whatever_its_mode(tmp_path: Path) -> None:
    config = tiny_config(**VGG, weight_bits=2)
    result = train(config)
    first = save(result, tmp_path / "first").read_bytes()
    result.network.train()
    assert save(result, tmp_path / "deep" / "second").read_bytes() == first
    assert all(module.training for module in result.network.modules())
    for module in result.network.modules():
        if isinstance(module, SLBLayer | StateBatchNorm2d):
            module.state = "continuous"
    assert save(result, tmp_path / "first").read_bytes() == first
    states = {m.state for m in result.network.modules() if isinstance(m, SLBLayer)}
    assert states == {"continuous"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "first"]


def test_a_run_is_packed_with_its_configuration_and_metrics(tmp_path: Path) -> None:
    config = tiny_config(**VGG, weight_bits=2)
    result = train(config, folder=tmp_path / "run")
    path = pack_run(tmp_path / "run", tmp_path / "network.safetensors")
    packed = read_packed(path)
    assert packed.config == config
    assert packed.info == DIGITS
    assert packed.version == VERSION
    # Time is left out: the run repeated gives the same file.
    assert packed.metrics == {k: v for k, v in result.metrics.items() if k != "seconds"}
    train(config, folder=tmp_path / "repeated")
    repeated = pack_run(tmp_path / "repeated", tmp_path / "repeated.safetensors")
    assert repeated.read_bytes() == path.read_bytes()
    # The network works where a trained one does.
    score = measure(load_packed(path), data.load_test(config.data), config, DIGITS)
    assert score["accuracy"] == evaluate(tmp_path / "run")["test_accuracy"]


def test_an_unfinished_run_is_not_packed(tmp_path: Path) -> None:
    def stop(**_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny_config(**VGG, epochs=2), stop, folder=tmp_path)
    with pytest.raises(CheckpointError, match="has done 1 of 2 epochs"):
        pack_run(tmp_path, tmp_path / "network.safetensors")


def test_a_checkpoint_that_training_began_from_is_not_needed_any_more(tmp_path: Path) -> None:
    train(tiny_config(**VGG, method="float"), folder=tmp_path / "float")
    start = tmp_path / "float" / "checkpoint.pt"
    result = train(tiny_config(**VGG, **{"init.checkpoint": str(start)}))
    start.unlink()
    loaded = load_packed(save(result, tmp_path / "n"))
    images = inputs(result.config)
    assert torch.equal(loaded(images), result.network(images))


def test_a_metric_that_is_not_a_number_is_missing(tmp_path: Path) -> None:
    network, metrics = make_network(tiny_config(), DIGITS, CPU), {"a": float("nan"), "b": 3}
    path = save_packed(network, tiny_config(), tmp_path / "n", DIGITS, metrics)
    assert read_packed(path).metrics == {"a": None, "b": 3.0}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    network = make_network(tiny_config(), DIGITS, CPU)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "n", tmp_path / "folder"):
        with pytest.raises(CheckpointError, match=f"{path.name} cannot be written: "):
            save_packed(network, tiny_config(), path, DIGITS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_loading_leaves_the_random_state_alone(tmp_path: Path) -> None:
    path = save_packed(
        make_network(tiny_config(), DIGITS, CPU), tiny_config(), tmp_path / "n", DIGITS
    )
    before = torch.get_rng_state()
    load_packed(path)
    assert torch.equal(torch.get_rng_state(), before)


# Files that are not to be trusted


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


def refused(path: Path, words: str) -> CheckpointError:
    with pytest.raises(CheckpointError, match=words) as caught:
        load_packed(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def test_rewriting_nothing_leaves_a_file_that_loads(whole: Path, tmp_path: Path) -> None:
    load_packed(rewrite(whole, tmp_path / "n", lambda tensors, header: None))


def test_no_part_of_a_file_loads(whole: Path, tmp_path: Path) -> None:
    content, path = whole.read_bytes(), tmp_path / "n"
    for length in (0, 1, 7, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        refused(path, "is not a whole packed network: it is no safetensors file, or a part of one")
    path.write_bytes(content + b"\0")
    refused(path, "is not a whole packed network")


def test_one_flipped_bit_anywhere_is_found(whole: Path, tmp_path: Path) -> None:
    content, path = whole.read_bytes(), tmp_path / "n"
    where = torch.randint(len(content), (60,), generator=torch.Generator().manual_seed(1))
    for place in where.tolist():
        broken = bytearray(content)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        refused(path, "packed network|another program|format")


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_do_not_load(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "junk"
    path.write_bytes(junk)
    refused(path, "is not a whole packed network")


def test_files_of_others_do_not_load(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}))
    refused(path, "is a safetensors file of another program")
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, {"format": "pt"}))
    assert "slb-autotune export" in refused(path, "another program").hint
    torch.save({"a": torch.ones(2)}, path)
    refused(path, "is no safetensors file")
    refused(tmp_path / "nowhere", "cannot be read: No such file")
    refused(tmp_path, "cannot be read: Is a directory")


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", "{}", '"format"', "[" * 100_000])
def test_metadata_that_is_not_our_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, {METADATA_KEY: text}))
    refused(path, "not a whole packed network: its metadata cannot be read")


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
    "channels in words": (
        lambda tensors, header: header["data"].update(in_channels="one"),
        "has metadata that is not understood: .*in_channels",
    ),
    "other channels": (
        lambda tensors, header: header["data"].update(in_channels=3),
        r"conv1.weight must be float32 of shape \[4, 3, 3, 3\]; got float32 of",
    ),
    "a size below zero": (
        lambda tensors, header: header["data"].update(image_size=-8),
        "cannot be made: ",
    ),
    "a network too large for any machine": (
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
    change, words = CHANGES[name]
    refused(rewrite(whole, tmp_path / "n", change), words)


def test_content_that_was_changed_by_hand_is_refused(whole: Path, tmp_path: Path) -> None:
    changes: list[Change] = [
        lambda tensors, header: tensors["fc.bias"].add_(1),
        lambda tensors, header: tensors.pop("fc.bias"),
        lambda tensors, header: header["metrics"].update(a=99.0),
        lambda tensors, header: header.pop("checksum"),
    ]
    for change in changes:
        path = rewrite(whole, tmp_path / "n", change, sign=False)
        refused(path, "not a whole packed network: its checksum does not match")


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
    error = refused(path, "holds the network 'somebodys_module:build', and making it would run")
    assert "trust_network=True" in error.hint
    assert not marker.exists()
    assert "somebodys_module" not in sys.modules
    with pytest.raises(CheckpointError, match=r"cannot be made: .* no function 'build'"):
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


def test_a_network_of_torchvision_needs_no_trust(tmp_path: Path) -> None:
    config = TrialConfig.from_mapping({"network": "torchvision:squeezenet1_1", "data": "cifar10"})
    network = make_network(config, CIFAR, CPU).eval()
    loaded = load_packed(save_packed(network, config, tmp_path / "n", CIFAR))
    images = formatted(torch.randn(2, 3, 32, 32), config)
    assert torch.equal(loaded(images), network(images))
