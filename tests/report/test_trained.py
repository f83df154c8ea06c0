"""Figures of trained runs: the weights of a layer over training, and the strip of pictures."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner

from slb_autotune import data
from slb_autotune.cli.main import app
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import InputError
from slb_autotune.export.packed import load_packed, pack_run
from slb_autotune.report import study_report, trained
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import StudyFolder, open_ledger
from slb_autotune.search.worker import TrialWork
from slb_autotune.training.evaluation import load_run
from slb_autotune.training.run_folder import RunFolder
from tests.data.samples import image_folders

POINTS = [
    {"method": "slb", "weight_bits": 1},
    {"method": "float"},
    {"method": "dorefa", "weight_bits": 1},
    {"method": "slb", "weight_bits": 2},
]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A study of super-resolution whose four networks were really trained."""
    folder = tmp_path_factory.mktemp("strip")
    trial = {
        "network": {"name": "vdsr", "width": 4, "options": {"depth": 4}},
        "data": {"name": "sr_folder", "root": str(image_folders(folder)), "patch": 24},
        "data.patches": 64,
        "data.val_fraction": 0.2,
        "optimizer": {"name": "adam", "lr": 0.01},
        "epochs": 2,
        "batch_size": 16,
        "norm.batches": 2,
        "device": "cpu",
    }
    config = StudyConfig.from_mapping(
        {
            "name": "sr",
            "confirms": "earlier",
            "trial": TrialConfig.from_mapping(trial).to_mapping(),
            "points": POINTS,
            "objectives": {"val_psnr": "maximize", "size_bytes": "minimize"},
            "storage": {"folder": str(folder / "runs")},
        }
    )
    files = StudyFolder(folder / "runs", "sr")
    files.path.mkdir(parents=True)
    files.config_path.write_text(config.to_yaml())
    ledger = open_ledger(config, files)
    while (found := ledger.next_order()) is not None:
        number, order = found
        work = TrialWork(order)
        while (row := work.next_epoch())["status"] == "running":
            pass
        ledger.finish(number, row)
    return ledger


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def slow_psnr(image: np.ndarray, truth: np.ndarray, border: int) -> float:
    cut = (slice(border, -border), slice(border, -border))
    difference = np.round(np.clip(image, 0, 1) * 255) - np.round(truth * 255)
    return -10 * math.log10(float(np.mean((difference[cut] / 255) ** 2)))


@pytest.mark.parametrize("picture", [1, 2])
def test_the_strip_has_the_psnr_of_each_network_on_that_picture(
    ledger: Ledger, tmp_path: Path, picture: int
) -> None:
    ((name, caption, figure),) = trained.strips(ledger, picture)
    assert name == "strip_x2"
    assert caption.startswith(f"Super-resolution by 2: test picture {picture}, and the detail")
    x, y = list(data.load_test(ledger.base.data).batches(1))[picture - 1]
    truth = y[0, 0].double().numpy()
    expected = {"input, bicubic": x}
    for trial, title in ((1, "float"), (2, "DoReFa, 1 bit"), (0, "SLB, 1 bit")):
        path = pack_run(ledger.trial_folder(trial) / "full", tmp_path / f"{trial}.safetensors")
        with torch.no_grad():
            expected[title] = load_packed(path)(x)
    found = dict(re.findall(r"(.+)   (-?\d+\.\d\d) dB", "\n".join(words(figure))))
    assert list(found) == list(expected), "with their names, in the order of the paper's figure"
    for title, image in expected.items():
        value = slow_psnr(image[0, 0].double().numpy(), truth, 2)
        assert float(found[title]) == pytest.approx(value, abs=0.006), title
    whole, *details = figure.axes
    np.testing.assert_allclose(whole.images[0].get_array(), truth, atol=1e-6)
    left, top, width, height = trained.detail(x, y, expected["float"])
    shown = (slice(top, top + height), slice(left, left + width))
    for axes, image in zip(details, [y, *expected.values()], strict=True):
        pixels = image[0, 0].clamp(0, 1).numpy()[shown]
        np.testing.assert_allclose(axes.images[0].get_array(), pixels, rtol=0, atol=1e-7)


def test_the_detail_is_where_most_was_mended() -> None:
    y = torch.zeros(1, 1, 20, 40)
    x = y.clone()
    x[..., :5, :10] = 9  # more is lost here, but nothing is mended
    mended = x.clone()
    x[..., 11:16, 23:33] = 1
    assert trained.detail(x, y, mended) == (23, 11, 10, 5)
    corner = (..., slice(3), slice(3))
    assert trained.detail(x[corner], y[corner], mended[corner]) == (0, 0, 1, 1)


def test_there_is_a_strip_only_where_all_three_methods_ended(ledger: Ledger) -> None:
    kept = ledger.records
    assert [r.number for r in trained.compared(ledger)[2].values()] == [0, 2, 1]
    ledger.records = {number: kept[number] for number in (0, 1, 3)}
    assert list(trained.strips(ledger)) == []
    ledger.records = kept


def test_the_strip_of_a_search_leaves_the_test_set_alone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ledger.config.model_copy(update={"confirms": None})
    monkeypatch.setattr(ledger, "config", search)
    monkeypatch.setattr(data, "load_test", lambda _: pytest.fail("the test set was read"))
    ((_, caption, _),) = trained.strips(ledger)
    assert caption.startswith("Super-resolution by 2: validation picture 1, and the detail")


def test_a_missing_picture_is_named_and_missing_files_stop_no_report(ledger: Ledger) -> None:
    with pytest.raises(InputError, match=r"there is no test picture 3 Hint: there are 2\."):
        list(trained.strips(ledger, 3))
    pictures = Path(str(ledger.base.data.root), "test")
    pictures.rename(pictures.with_name("away"))
    ((_, caption, figure),) = trained.strips(ledger)
    pictures.with_name("away").rename(pictures)
    assert caption.startswith("Expected a folder of images")
    assert words(figure) == ["There is no picture to show."]


def test_the_weights_of_a_run_are_those_of_its_layer(ledger: Ledger) -> None:
    folder = ledger.trial_folder(0) / "full"
    name, figure = trained.weights(folder, "body.conv2")
    assert name == "body.conv2"
    assert "continuous weights of body.conv2" in words(figure)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["epoch 1", "epoch 2"]
    assert figure.axes[0].get_xlabel() == "$W_c$"
    _, network = load_run(folder, torch.device("cpu"))
    W_c = network.get_submodule(name).continuous_weight().detach().numpy()
    counts, edges = np.histogram(W_c, 41, (-1, 1))
    last = figure.axes[0].patches[-2].get_data()
    np.testing.assert_allclose(last.edges, edges)
    np.testing.assert_allclose(last.values - last.baseline, 0.85 * counts / counts.max())
    rival = trained.weights(ledger.trial_folder(2) / "full")[1]
    assert rival.axes[0].get_xlabel() == "weight"
    with pytest.raises(InputError, match=r"no low-bit layer 'body.conv9' .*mean 'body.conv"):
        trained.weights(folder, "body.conv9")


def test_the_largest_layer_is_shown_unless_one_is_named(ledger: Ledger, tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(ledger.trial_folder(0) / "full", tmp_path / "run"))
    assert trained.weights(copy.path)[0] == "body.conv1", "the first of equals"
    kept = copy.histograms()
    kept["body.conv2"][:, 2:] += 1
    copy.save_tables({"history": [], "histograms": kept})
    assert trained.weights(copy.path)[0] == "body.conv2"


def test_a_study_shows_the_weights_of_its_best_low_bit_trial(ledger: Ledger) -> None:
    ((name, caption, figure),) = study_report.weight_figures(ledger, None)
    own = [record for record in ledger.front() if record.config.method == "slb"]
    best = max(own, key=lambda record: record.metrics["val_psnr"])
    assert name == "weights"
    assert caption == f"Weights of body.conv1 of trial {best.number} over training."
    assert "continuous weights of body.conv1" in words(figure)
    ((_, caption, _),) = study_report.weight_figures(ledger, "body.conv2")
    assert caption.startswith("Weights of body.conv2")


def test_the_command_draws_them_on_the_page_and_for_one_run(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_report, "study_figures", lambda *_: [])  # slow, and not of interest
    runs = ledger.config.storage.folder
    options = ["--runs", runs, "--json", "--layer", "body.conv2"]
    told = CliRunner().invoke(app, ["report", "sr", "--picture", "2", *options])
    assert told.exit_code == 0, told.output
    page = Path(json.loads(told.stdout)["page"])
    names = {path.name for path in (page.parent / "figures").iterdir()}
    assert {"weights.png", "weights.svg", "strip_x2.png", "strip_x2.svg"} <= names
    assert "Super-resolution by 2: test picture 2, and the detail" in page.read_text()
    assert "Weights of body.conv2 of trial" in page.read_text()

    told = CliRunner().invoke(app, ["report", "sr:2", *options])
    assert told.exit_code == 0, told.output
    figure = Path(json.loads(told.stdout)["figure"])
    assert figure == ledger.trial_folder(2) / "full" / "weights.png"
    assert figure.exists()
    told = CliRunner().invoke(app, ["report", "sr:1", "--runs", runs])
    assert isinstance(told.exception, InputError)
    assert "has no histograms of its weights" in told.exception.message
    told = CliRunner().invoke(app, ["report", "rs", "--runs", runs])
    assert isinstance(told.exception, InputError)
    assert told.exception.message == "there is no study 'rs'"
