"""The packed file: the same predictions to the bit, in exactly `size_bytes` bytes."""

from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import estimate, profile, size_bytes
from slb_autotune.errors import CheckpointError, ConversionError
from slb_autotune.export.format import read_packed
from slb_autotune.export.packed import load_packed, pack_run, save_packed
from slb_autotune.export.runtime import FoldedNorm2d, PackedConv2d
from slb_autotune.quant import SLBConv2d, SLBLayer, StateBatchNorm2d, quantize
from slb_autotune.training.evaluation import evaluate, measure
from slb_autotune.training.loop import TrainResult, train
from slb_autotune.training.network import formatted, make_network
from slb_autotune.version import VERSION
from tests.builders import CIFAR, tiny_config
from tests.export.reference import CPU, DIGITS, slow_pack
from tests.training.configs import photos

HERE = __name__  # networks of this module are a user's own: `module:function`


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
    "network.width": 5,
    "network.options": {"depth": 4},
    "data.patches": 32,
    "data.patch": 16,
    "norm.batches": 1,
}
VDSR_CASES: dict[str, dict[str, Any]] = {
    "vdsr": {},
    "vdsr, tail quantised": {"keep_float": [], "weight_bits": 2, "norm.mode": "paper"},
    "vdsr, off": {"norm.mode": "off", "activation_bits": 2, "weight_bits": 4},
}

TRIALS = {name: tiny_config(**changes) for name, changes in CASES.items()}
TRIALS |= {name: photos(**VDSR, **changes) for name, changes in VDSR_CASES.items()}


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
    assert payload == size_bytes(profile(result.network, info.input_shape))

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


# BNs that stay plain


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
    # The loaded network can be measured like the trained one.
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


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
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


def test_a_network_of_torchvision_needs_no_trust(tmp_path: Path) -> None:
    config = TrialConfig.from_mapping({"network": "torchvision:squeezenet1_1", "data": "cifar10"})
    network = make_network(config, CIFAR, CPU).eval()
    loaded = load_packed(save_packed(network, config, tmp_path / "n", CIFAR))
    images = formatted(torch.randn(2, 3, 32, 32), config)
    assert torch.equal(loaded(images), network(images))
