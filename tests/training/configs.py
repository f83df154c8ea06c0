"""Small trials of both tasks, which the tests of training share."""

from __future__ import annotations

from slb_autotune.config.trial import TrialConfig
from tests.builders import tiny_config


def small(**changes: object) -> TrialConfig:
    """Two epochs of 200 digits, a network of width 4: ResNet8 where no other is named."""
    return tiny_config(**{"epochs": 2, "batch_size": 50, "data.train_images": 200, **changes})


def photos(**changes: object) -> TrialConfig:
    """One epoch of super-resolution by a VDSR of three convolutions."""
    base = TrialConfig.from_mapping(
        {
            "network": {"name": "vdsr", "width": 4, "options": {"depth": 3}},
            "data": {"name": "photos", "patches": 64, "patch": 24},
            "optimizer": {"name": "adam", "lr": 1e-3},
            "epochs": 1,
            "batch_size": 16,
            "device": "cpu",
        }
    )
    return base.updated(changes)
