"""The figures that need run folders: of a run's histograms, and of what networks predict."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from slb_autotune import data
from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import bits_label
from slb_autotune.config.metrics import COST, METRICS, quality_metric
from slb_autotune.config.trial import DataConfig, TrialConfig
from slb_autotune.data.super_resolution import psnr
from slb_autotune.errors import CheckpointError, DataError, InputError, nearest
from slb_autotune.quant.diagnostics import BINS
from slb_autotune.report import figures
from slb_autotune.training.device import isolated
from slb_autotune.training.evaluation import load_run
from slb_autotune.training.network import formatted
from slb_autotune.training.run_folder import RunFolder

STRIP = {"float": "float", "dorefa": "DoReFa", "slb": "SLB"}  # the methods of the paper's figure


def weights(folder: Path, layer: str | None = None) -> tuple[str, Figure]:
    """The weights of a run's layer over training, and the layer: its largest unless named."""
    files = RunFolder(folder)
    config, kept = files.config(), files.histograms()
    if not kept:
        raise InputError(
            f"the run in {folder} has no histograms of its weights",
            "runs of low-bit networks have them after their first epoch.",
        )
    if layer is not None and layer not in kept:
        raise InputError(
            f"the run in {folder} has no low-bit layer {layer!r}", nearest(layer, kept)
        )
    name = layer or max(kept, key=lambda name: float(kept[name][-1, 2:].sum()))
    histograms = [
        (int(row[0]), row[2:], np.linspace(-row[1], row[1], BINS + 1))
        for row in kept[name].double().numpy()
    ]
    symbol = "W_c" if config.method == "slb" else "weight"
    return name, figures.draw_weight_histogram(histograms, name, symbol)


def strips(result: StudyResult, picture: int = 1) -> Iterator[tuple[str, str, Figure]]:
    """(file name, caption, figure) of a picture, for each scale at which all methods ended.

    Pictures are counted from 1. A confirmation shows one of the test set; a search, which must
    not look there, one of the validation part.
    """
    part = "test" if result.config.confirms else "validation"
    for scale, runs in compared(result).items():
        caption = (
            f"Super-resolution by {scale}: {part} picture {picture}, and the detail of it "
            "to which the float network adds most."
        )
        try:
            figure = strip([runs[method] for method in STRIP], picture, part)
        except (CheckpointError, DataError) as error:  # missing files stop no report
            caption, figure = error.message, figures.draw_strip([])
        yield f"strip_x{scale}", caption, figure


def compared(result: StudyResult) -> dict[int, dict[str, Path]]:
    """Scale -> method -> run folder, where every method of the strip has one.

    Of several the smallest network is taken, and of these the best on the validation part.
    """
    found: dict[int, dict[str, Path]] = {}
    if not result.base.super_resolution:
        return found
    quality = METRICS[quality_metric(super_resolution=True)]
    ended = result.with_status("done").sort_values(
        [COST, quality.name], ascending=[True, quality.direction == "minimize"], kind="stable"
    )
    for trial, method in zip(ended["trial"], ended["method"], strict=True):
        folder = result.run_folder(trial)
        if folder is not None:
            scale = result.config_of(trial).data.scale
            found.setdefault(scale, {}).setdefault(method, folder)
    return {scale: runs for scale, runs in sorted(found.items()) if runs.keys() >= STRIP.keys()}


def strip(runs: list[Path], picture: int, part: str) -> Figure:
    """Ground truth, input and what each run makes of it, with the PSNR of the whole picture.

    The first run is the float network.
    """
    first = RunFolder(runs[0]).config()
    x, y = read_picture(first.data, picture, part)
    shown = [("input, bicubic", x), *(prediction(folder, x) for folder in runs)]
    pictures: list[figures.Picture] = [("ground truth", y[0, 0].numpy(), None)]
    for name, image in shown:
        pictures.append((name, image[0, 0].numpy(), psnr(image, y, first.data.scale)))
    return figures.draw_strip(pictures, detail(x, y, shown[1][1]))


def read_picture(config: DataConfig, picture: int, part: str) -> tuple[Tensor, Tensor]:
    """Input and ground truth of a picture of the test set or the validation part."""
    split = data.load_test(config) if part == "test" else data.load_train(config)[1]
    count = 0 if split is None else len(split)
    if split is None or not 1 <= picture <= count:
        raise InputError(f"there is no {part} picture {picture}", f"there are {count}.")
    return next(islice(split.batches(1), picture - 1, None))


def prediction(folder: Path, x: Tensor) -> tuple[str, Tensor]:
    """What a run's network makes of a picture, under the name of its method and bits."""
    device = torch.device("cpu")  # the same pixels on every machine
    config, network = load_run(folder, device)
    with isolated(config.threads, device), torch.no_grad():
        output = network(formatted(x.to(device), config))
    return label(config), output.float().cpu()


def label(config: TrialConfig) -> str:
    """`float`; `SLB, 1 bit`; `SLB, 1/4 bits` where activations are quantised too."""
    if config.method == "float":
        return STRIP["float"]
    bits = [bits_label(config.weight_bits), bits_label(config.activation_bits)]
    both = bits[0] if bits[1] == "32" else "/".join(bits)
    return f"{STRIP[config.method]}, {both} {'bit' if both == '1' else 'bits'}"


def detail(x: Tensor, y: Tensor, restored: Tensor) -> figures.Box:
    """A quarter of each side of the picture, where `restored` lost most of the error of `x`."""
    height, width = (max(1, side // 4) for side in y.shape[-2:])
    gain = (x - y).square() - (restored - y).square()
    gain = F.avg_pool2d(gain, (height, 1), stride=1)
    gain = F.avg_pool2d(gain, (1, width), stride=1)
    top, left = divmod(int(gain.argmax()), gain.shape[-1])
    return left, top, width, height
