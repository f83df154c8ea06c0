"""Named presets: the paper's recipes for each network and task, and short ones for laptops.

Where the paper is silent, a recipe takes what the authors' README says; each summary names the
source. The paper's figure is the only place that prints temperatures: T_s 0.01, T_e 10.
"""

from __future__ import annotations

from typing import Any

from slb_autotune.config.registry import Entry, Registry
from slb_autotune.config.trial import TrialConfig

_PAPER_TEMPERATURE = {"schedule": "exp", "T_s": 0.01, "T_e": 10.0}
_PAPER_LR = {"name": "milestones", "milestones": [0.7, 0.88, 0.95], "gamma": 0.1}


def _recipe(name: str, summary: str, **config: Any) -> Entry:
    return Entry(name, summary, "slb_autotune.config.recipes:recipe", config)


RECIPES = Registry(
    "recipe",
    (
        _recipe(
            "digits",
            "1-bit ResNet20 of width 8 on the embedded digits: 20 epochs, under half a minute",
            network={"name": "resnet20", "width": 8},
            data={"name": "digits", "augment": False},
            batch_size=50,
        ),
        _recipe(
            "digits_paper_temperature",
            "the same with the paper's T_e = 10: too soft for so short a run",
            network={"name": "resnet20", "width": 8},
            data={"name": "digits", "augment": False},
            batch_size=50,
            temperature=_PAPER_TEMPERATURE,
        ),
        _recipe(
            "photos_vdsr",
            "1-bit VDSR of width 16 and depth 8 on the embedded photographs, minutes",
            network={"name": "vdsr", "width": 16, "options": {"depth": 8}},
            data={"name": "photos", "patches": 640},
            optimizer={"name": "adam", "lr": 2e-3, "weight_decay": 0.0},
            batch_size=32,
        ),
        _recipe(
            "cifar10_resnet20",
            "paper, section 4.1: 500 epochs, lr / 10 at 350, 440, 475; the rest from the README",
            network={"name": "resnet20"},
            data={"name": "cifar10"},
            temperature=_PAPER_TEMPERATURE,
            norm={"mode": "paper"},
            lr_schedule=_PAPER_LR,
            epochs=500,
        ),
        _recipe(
            "cifar10_resnet20_readme",
            "the authors' README: conv-PReLU-BN, T x 1.03 an epoch from 0.4 to 0.9 of training",
            network={"name": "resnet20", "options": {"order": "conv_prelu_bn"}},
            data={"name": "cifar10"},
            activation="pact",
            temperature={
                "schedule": "exp",
                "T_s": 0.01,
                "T_e": 0.01 * 1.03**250,
                "flat_until": 0.4,
                "flat_from": 0.9,
                "update": "epoch",
            },
            lr_schedule=_PAPER_LR,
            epochs=500,
        ),
        _recipe(
            "cifar10_resnet20_short",
            "five epochs of one-cycle SGD with T_e = 1000, for a first look on a laptop",
            network={"name": "resnet20"},
            data={"name": "cifar10"},
            epochs=5,
            batch_size=128,
        ),
        _recipe(
            "cifar10_vgg_small",
            "paper, section 4.1, VGG-Small: as ResNet20 with lr 0.02 and weight decay 5e-4",
            network={"name": "vgg_small"},
            data={"name": "cifar10"},
            temperature=_PAPER_TEMPERATURE,
            norm={"mode": "paper"},
            optimizer={"lr": 0.02, "weight_decay": 5e-4},
            lr_schedule=_PAPER_LR,
            epochs=500,
        ),
        _recipe(
            "imagenet_resnet18",
            "paper, section 4.2: Adam, lr 1e-3, no weight decay; 240 epochs of the README",
            network={"name": "resnet18"},
            data={"name": "imagenet", "workers": 8},
            temperature=_PAPER_TEMPERATURE,
            norm={"mode": "paper"},
            optimizer={"name": "adam", "lr": 1e-3, "weight_decay": 0.0},
            lr_schedule=_PAPER_LR,
            epochs=240,
            batch_size=256,
        ),
        _recipe(
            "sr_vdsr",
            "paper, section 4.3, with VDSR's own training: lr 0.1, / 10 every 20 of 80 epochs",
            network={"name": "vdsr"},
            data={"name": "sr_folder", "patches": 64000},
            temperature=_PAPER_TEMPERATURE,
            norm={"mode": "paper"},
            optimizer={"lr": 0.1, "weight_decay": 1e-4, "clip": "vdsr"},
            lr_schedule={"name": "milestones", "milestones": [0.25, 0.5, 0.75], "gamma": 0.1},
            epochs=80,
            batch_size=64,
        ),
        _recipe(
            "sr_vdsr_short",
            "VDSR of width 32 and depth 10 with Adam for some minutes, T_e = 1000",
            network={"name": "vdsr", "width": 32, "options": {"depth": 10}},
            data={"name": "sr_folder", "patches": 4096},
            optimizer={"name": "adam", "lr": 2e-3, "weight_decay": 0.0},
            epochs=5,
            batch_size=32,
        ),
    ),
)


def recipe(name: str) -> TrialConfig:
    """The configuration of a named recipe."""
    entry = RECIPES[name]
    return TrialConfig.from_mapping(entry.details, f"recipe {name}")
