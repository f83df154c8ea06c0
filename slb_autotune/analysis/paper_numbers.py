"""The published numbers: which tables the paper has, and the budget behind each.

`results/paper/published.csv` has one row per number, named by our metrics, with the place where
the paper prints it. `results/paper/references.csv` has what others measured, with its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from slb_autotune.config.recipes import RECIPES
from slb_autotune.errors import DataError

FOLDER = Path("results/paper")

PUBLISHED_COLUMNS: dict[str, str] = {
    "table": "str",  # table1, table2, table3, schedules, sbn, vdsr
    "part": "str",  # half of a table, schedule, or scale of super-resolution
    "row": "Int64",  # counted from 1 in each part, as printed
    "method": "str",  # the paper's name of it
    "weight_bits": "str",  # 32 is full precision
    "activation_bits": "str",  # empty where the paper does not say
    "metric": "str",  # our name of it: percent, dB, or a temperature
    "value": "float64",
    "network": "str",
    "data": "str",
    "place": "str",  # label or section, and line of the LaTeX source
}

REFERENCE_COLUMNS: dict[str, str] = {
    "source": "str",
    "method": "str",
    "network": "str",
    "data": "str",
    "weight_bits": "str",
    "activation_bits": "str",
    "metric": "str",
    "value": "float64",
    "detail": "str",
}

WITHOUT_SBN = "SLB (w/o SBN)"

# The paper's name of a method -> ours. A method that is not here cannot be run.
METHODS: dict[str, str] = {
    "FP32": "float",
    "SLB": "slb",
    WITHOUT_SBN: "slb",
    "DoReFa": "dorefa",
    "BNN": "bnn",
    "XNORNet": "xnor",
    "BWN": "bwn",
    "LQ-Net": "lqnet",
    "DSQ": "dsq",
    "SQ": "sq",
    "PACT": "pact",
    "HWGQ": "hwgq",
    "TTQ": "ttq",
    "SYQ": "syq",
    "TBN": "tbn",
    "ABCNet": "abcnet",
    "BiRealNet": "bireal",
}

# Channels of the first stage as published: a run of another width is another network.
WIDTHS: dict[str, int] = {"resnet20": 16, "vgg_small": 128, "resnet18": 64, "vdsr": 64}


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper, and the budget behind its numbers."""

    name: str
    title: str
    part: str  # what the column `part` holds; empty where there is none
    metrics: tuple[str, ...]  # the first one decides the verdict
    digits: int  # as printed
    tolerance: float  # a difference up to this is none
    recipe: str
    train_images: int
    notes: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """The paper's epochs, as its recipe has them."""
        return int(RECIPES[self.recipe].details["epochs"])

    @property
    def temperature(self) -> dict[str, Any]:
        """The paper's schedule, T_s and T_e."""
        return dict(RECIPES[self.recipe].details["temperature"])


_TOP1 = ("test_accuracy",)
_TOP5 = ("test_accuracy", "test_accuracy_top5")
_README_EPOCHS = (
    "The paper does not say how long it trained here; 240 epochs are the authors' README's."
)

TABLES: tuple[PaperTable, ...] = (
    PaperTable(
        "table1",
        "Table 1: ResNet20 on CIFAR-10, accuracy in %",
        "",
        _TOP1,
        1,
        0.5,
        "cifar10_resnet20",
        50_000,
    ),
    PaperTable(
        "table2",
        "Table 2: VGG-Small on CIFAR-10, accuracy in %",
        "",
        _TOP1,
        1,
        0.5,
        "cifar10_vgg_small",
        50_000,
    ),
    PaperTable(
        "table3",
        "Table 3: ResNet18 on ImageNet, accuracy in %",
        "Half",
        _TOP5,
        1,
        0.5,
        "imagenet_resnet18",
        1_281_167,
        (_README_EPOCHS, "The verdict is on top-1. The paper prints HWGQ 1/2 twice."),
    ),
    PaperTable(
        "schedules",
        "Temperature schedules: 1/1 ResNet20 on CIFAR-10, accuracy in %",
        "Schedule",
        _TOP1,
        1,
        0.5,
        "cifar10_resnet20",
        50_000,
        (
            "The paper's figure prints no accuracies; its text says that exp ends much higher "
            "than sin and linear, with T from 0.01 to 10.",
        ),
    ),
    PaperTable(
        "sbn",
        "State batch normalisation: 1/1 ResNet18 on ImageNet, accuracy in %",
        "",
        _TOP5,
        1,
        0.5,
        "imagenet_resnet18",
        1_281_167,
        (_README_EPOCHS, "The verdict is on top-1."),
    ),
    PaperTable(
        "vdsr",
        "Super-resolution: VDSR on Set5, PSNR in dB",
        "Scale",
        ("test_psnr",),
        2,
        0.1,
        "sr_vdsr",
        64_000,  # patches, since that is what a run counts here
        (
            "The paper says binarised and gives no activation bits; it trains as VDSR does, on "
            "291 pictures. Its budget is our recipe's reading of that: 80 epochs of 64,000 "
            "patches, and images are patches here.",
            "The figure does not say whether its numbers are of the picture shown or of all Set5; "
            "ours are the mean over the pictures of the test folder.",
        ),
    ),
)


def read_published(folder: Path = FOLDER) -> pd.DataFrame:
    """Every number that the paper prints, in the paper's order."""
    return _read(folder / "published.csv", PUBLISHED_COLUMNS)


def read_references(folder: Path = FOLDER) -> pd.DataFrame:
    """What the authors' README and later works report, with the source of each."""
    return _read(folder / "references.csv", REFERENCE_COLUMNS)


def _read(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(
            f"the published numbers are not at {path}",
            "run from the top folder of the repository, or give the folder results/paper.",
        )
    try:
        frame = pd.read_csv(path, dtype="str", keep_default_na=False)
        if list(frame.columns) != list(columns):
            raise ValueError(f"its columns must be {', '.join(columns)}")
        return frame.astype(columns)
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", "restore the file.") from error
