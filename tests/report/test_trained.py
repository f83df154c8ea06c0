"""Figures of trained runs: the weights of a layer over training, and the strip of pictures."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner

from slb_autotune import data
from slb_autotune.analysis.result import StudyResult, load_result, save_result, study_result
from slb_autotune.cli.main import app
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import InputError
from slb_autotune.export.packed import load_packed, pack_run
from slb_autotune.report import study_report, trained
from slb_autotune.search.storage import StudyFolder, open_ledger
from slb_autotune.search.worker import TrialRun
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
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
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
    while (found := ledger.ask()) is not None:
        number, assignment = found
        run = TrialRun(assignment)
        while (row := run.next_epoch())["status"] == "running":
            pass
        ledger.tell(number, row)
    return study_result(ledger.snapshot())


def full(result: StudyResult, trial: int) -> Path:
    """The folder of a trial's run."""
    folder = result.run_folder(trial)
    assert folder is not None
    return folder


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def slow_psnr(image: np.ndarray, truth: np.ndarray, border: int) -> float:
    cut = (slice(border, -border), slice(border, -border))
    difference = np.round(np.clip(image, 0, 1) * 255) - np.round(truth * 255)
    return -10 * math.log10(float(np.mean((difference[cut] / 255) ** 2)))


@pytest.mark.parametrize("picture", [1, 2])
def test_the_strip_has_the_psnr_of_each_network_on_that_picture(
    result: StudyResult, tmp_path: Path, picture: int
) -> None:
    ((name, caption, figure),) = trained.strips(result, picture)
    assert name == "strip_x2"
    assert caption.startswith(f"Super-resolution by 2: test picture {picture}, and the detail")
    x, y = list(data.load_test(result.base.data).batches(1))[picture - 1]
    truth = y[0, 0].double().numpy()
    expected = {"input, bicubic": x}
    for trial, title in ((1, "float"), (2, "DoReFa, 1 bit"), (0, "SLB, 1 bit")):
        path = pack_run(full(result, trial), tmp_path / f"{trial}.safetensors")
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


def test_the_detail_is_where_most_was_restored() -> None:
    y = torch.zeros(1, 1, 20, 40)
    x = y.clone()
    x[..., :5, :10] = 9  # more is lost here, but nothing is restored
    restored = x.clone()
    x[..., 11:16, 23:33] = 1
    assert trained.detail(x, y, restored) == (23, 11, 10, 5)
    corner = (..., slice(3), slice(3))
    assert trained.detail(x[corner], y[corner], restored[corner]) == (0, 0, 1, 1)


def test_there_is_a_strip_only_where_all_three_methods_ended(result: StudyResult) -> None:
    smallest = {"slb": full(result, 0), "float": full(result, 1), "dorefa": full(result, 2)}
    assert trained.compared(result) == {2: smallest}
    two = replace(result, trials=result.trials[result.trials["method"] != "dorefa"])
    assert list(trained.strips(two)) == []


def test_the_strip_of_a_search_leaves_the_test_set_alone(
    result: StudyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = replace(result, config=result.config.model_copy(update={"confirms": None}))
    monkeypatch.setattr(data, "load_test", lambda _: pytest.fail("the test set was read"))
    ((_, caption, _),) = trained.strips(search)
    assert caption.startswith("Super-resolution by 2: validation picture 1, and the detail")


def test_a_missing_picture_is_named_and_missing_files_stop_no_report(result: StudyResult) -> None:
    with pytest.raises(InputError, match=r"there is no test picture 3 Hint: there are 2\."):
        list(trained.strips(result, 3))
    pictures = Path(str(result.base.data.root), "test")
    pictures.rename(pictures.with_name("elsewhere"))
    ((_, caption, figure),) = trained.strips(result)
    pictures.with_name("elsewhere").rename(pictures)
    assert caption.startswith("Expected a folder of images")
    assert words(figure) == ["There is no picture to show."]


def test_the_weights_of_a_run_are_those_of_its_layer(result: StudyResult) -> None:
    folder = full(result, 0)
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
    rival = trained.weights(full(result, 2))[1]
    assert rival.axes[0].get_xlabel() == "weight"
    with pytest.raises(InputError, match=r"no low-bit layer 'body.conv9' .*mean 'body.conv"):
        trained.weights(folder, "body.conv9")


def test_the_largest_layer_is_shown_unless_one_is_named(
    result: StudyResult, tmp_path: Path
) -> None:
    copy = RunFolder(shutil.copytree(full(result, 0), tmp_path / "run"))
    assert trained.weights(copy.path)[0] == "body.conv1", "the first of equals"
    kept = copy.histograms()
    kept["body.conv2"][:, 2:] += 1
    copy.save_tables({"history": [], "histograms": kept})
    assert trained.weights(copy.path)[0] == "body.conv2"


def test_a_study_shows_the_weights_of_its_best_low_bit_trial(result: StudyResult) -> None:
    ((name, caption, figure),) = study_report.weight_figures(result)
    own = result.front[result.front["method"] == "slb"]
    best = own.loc[own["val_psnr"].idxmax(), "trial"]
    assert name == "weights"
    assert caption == f"Weights of body.conv1 of trial {best} over training."
    assert "continuous weights of body.conv1" in words(figure)
    ((_, caption, _),) = study_report.weight_figures(result, "body.conv2")
    assert caption.startswith("Weights of body.conv2")


def test_a_float_run_has_no_weights_to_show(result: StudyResult) -> None:
    with pytest.raises(InputError, match="has no histograms of its weights"):
        trained.weights(full(result, 1))


def test_the_page_shows_them_where_there_are_folders(
    result: StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_report, "study_figures", lambda _: [])  # slow, and not of interest
    page = study_report.write_study_report(
        result, tmp_path / "whole", layer="body.conv2", picture=2
    )
    names = {path.name for path in (page.parent / "figures").iterdir()}
    assert {"weights.png", "weights.svg", "strip_x2.png", "strip_x2.svg"} == names
    assert "Super-resolution by 2: test picture 2, and the detail" in page.read_text()
    assert "Weights of body.conv2 of trial" in page.read_text()
    save_result(result, tmp_path / "runs", "sr.")
    exported = load_result(tmp_path / "runs", "sr.")
    page = study_report.write_study_report(exported, tmp_path / "tables", layer="body.conv2")
    assert not (page.parent / "figures").exists()


def test_a_copied_study_folder_is_enough(result: StudyResult, tmp_path: Path) -> None:
    assert result.folder is not None
    copy = shutil.copytree(result.folder, tmp_path / "copy")
    save_result(result, copy / "result")
    moved = load_result(copy / "result", study_folder=copy)
    ((_, caption, _),) = study_report.weight_figures(moved)
    assert caption.startswith("Weights of body.conv1")
    ((name, _, figure),) = trained.strips(replace(moved, config=result.config))
    assert name == "strip_x2"
    assert "SLB, 1 bit" in " ".join(words(figure))


def test_the_command_draws_the_weights_of_one_run(result: StudyResult) -> None:
    assert result.folder is not None
    options = ["--runs", str(result.folder.parents[1]), "--json", "--layer", "body.conv2"]
    done = CliRunner().invoke(app, ["report", "sr:2", *options])
    assert done.exit_code == 0, done.output
    figure = Path(json.loads(done.stdout)["figure"])
    assert figure == full(result, 2) / "weights.png"
    assert figure.exists()
