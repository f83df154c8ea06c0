from __future__ import annotations

import pytest

from slb_autotune.config.recipes import RECIPES, recipe
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError
from slb_autotune.training.optim import learning_rate

PAPER = ["cifar10_resnet20", "cifar10_vgg_small", "imagenet_resnet18", "sr_vdsr"]
CIFAR10_PAPER = ["cifar10_resnet20", "cifar10_resnet20_readme", "cifar10_vgg_small"]


def rate(config: TrialConfig, epoch: int, steps: int = 450) -> float:
    """The learning rate in the first step of an epoch."""
    return learning_rate(
        config.lr_schedule, config.optimizer.lr, epoch * steps, config.epochs * steps
    )


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_valid(name):
    config = recipe(name)
    assert TrialConfig.from_yaml(config.to_yaml()) == config
    assert config.weight_bits == 1


def test_recipes_differ_from_each_other():
    assert len({recipe(name).digest for name in RECIPES}) == len(RECIPES)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown recipe 'digit' Hint: did you mean 'digits'\?"):
        recipe("digit")


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_temperature(name):
    temperature = recipe(name).temperature
    assert (temperature.schedule, temperature.T_s, temperature.T_e) == ("exp", 0.01, 10.0)
    assert (temperature.flat_until, temperature.flat_from) == (0.0, 1.0)
    assert recipe(name).norm.mode == "paper"


@pytest.mark.parametrize("name", CIFAR10_PAPER)
@pytest.mark.parametrize("steps", [1, 7, 450])
def test_cifar10_trains_500_epochs_and_drops_at_350_440_475(name, steps):
    config = recipe(name)
    assert config.epochs == 500
    lr = config.optimizer.lr
    for epoch, before, after in ((350, 1, 0.1), (440, 0.1, 0.01), (475, 0.01, 0.001)):
        assert rate(config, epoch - 1, steps) == pytest.approx(lr * before)
        assert rate(config, epoch, steps) == pytest.approx(lr * after)


def test_vgg_small():
    optimizer = recipe("cifar10_vgg_small").optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("sgd", 0.02, 5e-4)
    assert recipe("cifar10_vgg_small").network.name == "vgg_small"


def test_resnet18():
    config = recipe("imagenet_resnet18")
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adam", 1e-3, 0.0)
    assert (config.batch_size, config.epochs) == (256, 240)


def test_the_readmes_temperature_rises_by_3_percent_an_epoch_from_200_to_450():
    config = recipe("cifar10_resnet20_readme")
    temperature = config.temperature
    assert temperature.flat_until * config.epochs == 200
    assert temperature.flat_from * config.epochs == 450
    assert (temperature.T_e / temperature.T_s) ** (1 / (450 - 200)) == pytest.approx(1.03)
    assert temperature.update == "epoch"


def test_vdsr_drops_every_20_of_80_epochs():
    config = recipe("sr_vdsr")
    rates = [rate(config, epoch) for epoch in (0, 19, 20, 39, 40, 59, 60, 79)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4])
    assert (config.optimizer.clip, config.optimizer.clip_limit) == ("vdsr", 0.4)
