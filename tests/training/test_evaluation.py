"""Evaluation: the test set of finished runs, and the loss of both tasks."""

from pathlib import Path

import pytest
import torch
from torch import nn

from slb_autotune import data
from slb_autotune.errors import CheckpointError
from slb_autotune.training import loop
from slb_autotune.training.evaluation import (
    describe_layers,
    evaluate,
    evaluation_precision,
    load_run,
    task_loss,
)
from slb_autotune.training.loop import Trial, train
from slb_autotune.training.run_folder import RunFolder
from tests.builders import tiny_config
from tests.training.configs import photos, small

CPU = torch.device("cpu")


def test_mean_squared_error_is_that_of_the_residual() -> None:
    config = photos()
    info = data.info(config.data)
    x, residual, y = torch.rand(3, 4, 1, 5, 5)
    assert task_loss(x + residual, y, info) == pytest.approx(
        float((residual - (y - x)).square().mean())
    )


def test_super_resolution_reports_psnr(tmp_path: Path) -> None:
    metrics = train(photos(method="float"), folder=tmp_path).metrics
    assert metrics["val_psnr"] > 15
    assert "val_accuracy" not in metrics
    assert evaluate(tmp_path)["test_psnr"] > 15


def test_it_measures_the_test_set_and_only_finished_runs(tmp_path: Path) -> None:
    result = train(small(), folder=tmp_path)
    metrics = evaluate(tmp_path)
    assert metrics["test_images"] == len(data.load_test(small().data))
    assert metrics["size_bytes"] == result.metrics["size_bytes"]
    assert {"test_accuracy", "test_accuracy_top5", "test_accuracy_continuous"} <= set(metrics)


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    config = small()
    files.open(config)
    trial = Trial(config, data.info(config.data), CPU)
    trial.start(files)
    with pytest.raises(CheckpointError, match="has done 0 of 2 epochs"):
        evaluate(tmp_path)


def test_it_agrees_with_a_count_by_hand(tmp_path: Path) -> None:
    config = small()
    result = train(config, folder=tmp_path)
    right = total = 0
    with torch.no_grad():
        for x, y in data.load_test(config.data).batches(7):
            right += int((result.network(x).argmax(1) == y).sum())
            total += len(y)
    assert evaluate(tmp_path)["test_accuracy"] == pytest.approx(100 * right / total, abs=0.3)


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    train(small(epochs=1), folder=tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        evaluate(tmp_path)


def test_a_loaded_run_is_the_network_that_was_trained(tmp_path: Path) -> None:
    result = train(small(), folder=tmp_path)
    config, network = load_run(tmp_path, CPU)
    assert config == small()
    assert not network.training
    x, _ = next(data.load_test(config.data).batches(20))
    assert torch.equal(network(x), result.network(x))


def test_layers_are_described_by_cost_and_hardening(tmp_path: Path) -> None:
    result = train(small(weight_bits=2), folder=tmp_path)
    table = describe_layers(tmp_path).set_index("name")
    assert table["bytes"].sum() == result.metrics["size_bytes"]
    low_bit = table["weight_bits"] == 2
    assert low_bit.sum() == 6
    assert table.loc[low_bit, "quantization_gap"].between(0, 1).all()
    assert table.loc[~low_bit, "quantization_gap"].isna().all()


def test_the_validation_loss_has_no_label_smoothing() -> None:
    plain, smooth = (
        train(tiny_config(method="float", lr=1e-12, **{"label_smoothing": s})).metrics
        for s in (0.0, 0.5)
    )
    # With so small a learning rate both are the same network.
    assert smooth["val_loss"] == pytest.approx(plain["val_loss"], abs=1e-4)
    assert abs(smooth["train_loss"] - plain["train_loss"]) > 1e-3


@pytest.mark.parametrize(
    ("amp", "device", "expected"),
    [
        ("off", "cpu", "off"),
        ("bf16", "cpu", "bf16"),
        ("fp16", "cpu", "off"),
        ("fp16", "cuda", "fp16"),
    ],
)
def test_a_run_is_evaluated_in_its_own_precision_where_the_device_has_it(
    amp: str, device: str, expected: str
) -> None:
    assert evaluation_precision(tiny_config(amp=amp), torch.device(device)) == expected


@pytest.mark.parametrize("val_fraction", [0.0, 0.2])
def test_measuring_changes_nothing_in_the_network(
    val_fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LQ-Net's basis moves in train mode whenever its weight is computed."""
    modes = []
    diagnostics = loop.layer_diagnostics

    def watched(network: nn.Module, codes: object) -> object:
        modes.append(network.training)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        found = diagnostics(network, codes)
        after = network.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        return found

    monkeypatch.setattr(loop, "layer_diagnostics", watched)
    changes = {"method": "lqnet", "weight_bits": 2, "data.val_fraction": val_fraction}
    train(tiny_config(**changes))
    assert modes == [False]
