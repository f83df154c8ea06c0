"""Small configurations and networks that tests share."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import CostModel
from slb_autotune.data.base import DataInfo
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.worker import Assignment

CIFAR = DataInfo("classification", in_channels=3, num_classes=10, image_size=32)

# ResNet20 of width 4 on 64 digits for one epoch.
TINY = {
    "network.width": 4,
    "data.train_images": 64,
    "batch_size": 32,
    "epochs": 1,
    "norm.batches": 1,
    "device": "cpu",
}


def tiny_config(**changes: Any) -> TrialConfig:
    """The same, but ResNet8: it trains in a third of the time; changes by name."""
    base: dict[str, Any] = dict(TINY)
    if "network.name" not in changes:
        base["network.options"] = {"blocks": 1}
    return TrialConfig.from_mapping(base).updated(changes)


def tiny_network(bias: bool = False) -> nn.Sequential:
    """Convolutions 1-3-5 and a linear layer, for images of 8x8: small enough to count by hand."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 5, 3, bias=bias),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 10),
    )


def tiny_study(**changes: Any) -> StudyConfig:
    """A study over T_e and the bits of each stage of ResNet20; changes by top-level key."""
    values = {
        "name": "tiny",
        "trial": TINY,
        "space": {
            "T_e": {"log": [1, 10000]},
            "weight_bits": {"choices": [1, 2, 4], "per": "stage"},
        },
        "warm_start": {"uniform": False, "paper": False},
    }
    return StudyConfig.from_mapping({**values, **changes})


def fake_row(assignment: Assignment, until: int, **changes: Any) -> dict[str, Any]:
    """What a worker reports at epoch `until`: more bits and T_e near 100 are good."""
    config = TrialConfig.from_mapping(assignment.config)
    bits = assignment.costs["average_weight_bits"]
    off = abs(math.log10(config.temperature.T_e) - 2)
    row = {"status": "done", "epoch": until, "trial_epochs": until, "seconds": 1.0}
    row |= {"val_accuracy": 80 + 10 * (1 - 1 / bits) - 5 * off + until, "train_loss": 1.0}
    return {**row, **assignment.costs, **changes}


def play(ledger: Ledger, most: int = 1000) -> list[int]:
    """Train the ledger's trials one after the other with `fake_row`; their numbers."""
    trained: list[int] = []
    unfinished = [record.number for record in ledger.snapshot().with_status("running")]
    while len(trained) < most:
        if unfinished:
            number = unfinished.pop(0)
            assignment = ledger.resume(number)
        else:
            found = ledger.ask()
            if found is None:
                break
            number, assignment = found
        trained.append(number)
        for phase in assignment.phases[:-1]:
            row = fake_row(assignment, phase.until, status="rung")
            if not ledger.tell_rung(number, phase.rung, row):
                break
        else:
            ledger.tell(number, fake_row(assignment, assignment.phases[-1].until))
    return trained


_COSTS: dict[DataInfo, CostModel] = {}


def shared_costs(info: DataInfo) -> CostModel:
    """One cost model for all ledgers of a test run: it only remembers, and is slow to fill."""
    return _COSTS.setdefault(info, CostModel(info))
