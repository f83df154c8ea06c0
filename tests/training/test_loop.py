"""Training: Algorithm 1, the same numbers always, and nothing lost when it is killed."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from slb_autotune import data
from slb_autotune.errors import CheckpointError, ConfigError, TrainingFailed
from slb_autotune.quant import temperature
from slb_autotune.training.loop import Losses, TrainResult, Trial, train
from slb_autotune.training.run_folder import RunFolder
from tests.training.configs import photos, small

CPU = torch.device("cpu")


def same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    return one.drop(columns="seconds").equals(other.drop(columns="seconds"))


def same_weights(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_one_row_per_epoch_with_the_metrics_of_the_contract() -> None:
    reported: list[dict[str, float]] = []
    result = train(small(), lambda **row: reported.append(row))
    names = {
        *("epoch", "train_loss", "val_loss", "val_accuracy", "val_accuracy_top5"),
        *("val_accuracy_continuous", "val_loss_continuous", "temperature", "lr", "seconds"),
        *("quantization_gap", "frozen_fraction", "flip_rate"),
    }
    assert names <= set(result.history.columns)
    assert names | {"size_bytes", "bitops", "average_weight_bits"} <= set(result.metrics)
    assert result.history["epoch"].tolist() == [1, 2]
    assert pd.DataFrame(reported).equals(result.history)
    assert not result.network.training
    with pytest.raises(AttributeError):
        result.metrics = {}  # type: ignore[misc]


def test_temperature_follows_the_schedule_iteration_by_iteration() -> None:
    seen: list[float] = []
    config = small(T_s=0.1, T_e=50.0, schedule="sin")
    train(config, progress=lambda step: seen.append(step.temperature))
    assert seen == [temperature("sin", i, 8, 0.1, 50.0) for i in range(1, 9)]


def test_temperature_may_change_once_per_epoch() -> None:
    seen: list[float] = []
    config = small(**{"temperature.update": "epoch", "T_s": 1.0, "T_e": 4.0})
    train(config, progress=lambda step: seen.append(step.temperature))
    assert seen == pytest.approx([2.0] * 4 + [4.0] * 4)


def test_the_loss_falls_and_the_weights_harden() -> None:
    history = train(small(width=8, epochs=8, batch_size=20)).history
    assert history["train_loss"].iloc[-1] < 0.7 * history["train_loss"].iloc[0]
    assert history["quantization_gap"].is_monotonic_decreasing
    assert history["frozen_fraction"].iloc[-1] > 0.9


@pytest.fixture(scope="module")
def plain() -> TrainResult:
    torch.set_num_threads(1)
    return train(small(epochs=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "float"},
        {"weight_bits": 4, "activation_bits": 2},
        {"weight_bits": {"layer1.*": 2, "*": 1}, "activation_bits": {"layer3.*": 4}},
        {"activation_bits": 1, "activation": "sign"},
        {"activation_bits": 2, "activation": "pact"},
        {"norm.mode": "paper", "norm.every": 2},
        {"norm.mode": "off"},
        {"network.options.order": "conv_prelu_bn", "norm.mode": "paper"},
        {"optimizer": {"name": "adam", "lr": 0.001, "clip": "norm"}},
        {"optimizer.nesterov": True, "optimizer.clip": "vdsr", "optimizer.decay_logits": True},
        {"lr_schedule.name": "milestones", "label_smoothing": 0.1},
        {"lr_schedule.name": "cosine", "lr_schedule.warmup": 0.2},
        {"amp": "bf16"},
        {"channels_last": False},
        {"data.augment": False, "schedule": "cosine"},
        {"network.name": "vgg_small"},
    ],
)
def test_every_setting_has_an_effect_and_trains(changes: dict, plain: TrainResult) -> None:
    config = small(epochs=1, **changes)
    result = train(config)
    found, default = (
        [run.metrics[name] for name in ("train_loss", "val_loss")] for run in (result, plain)
    )
    assert 0 < found[0] < 5
    if changes == {"channels_last": False}:  # the layout in memory changes rounding at most
        assert found == pytest.approx(default)
    else:
        assert found != default
    untrained = Trial(config, data.info(config.data), CPU).network
    for before, after in zip(untrained.parameters(), result.network.parameters(), strict=True):
        assert torch.isfinite(after).all()
        assert not torch.equal(before, after)


def test_one_bit_super_resolution_trains() -> None:
    history = train(photos(epochs=4, **{"data.patches": 160})).history
    assert history["val_psnr"].iloc[-1] > history["val_psnr"].iloc[0]


def test_without_validation_the_whole_training_set_trains() -> None:
    config = small(epochs=1).updated({"data.val_fraction": 0.0, "data.train_images": None})
    trial = Trial(config, data.info(config.data), CPU)
    assert trial.val_split is None
    assert not any(name.startswith("val") for name in trial.run_epoch(0))


@pytest.mark.parametrize(("batch_size", "images"), [(60, 180), (10_000, 200)])
def test_images_of_an_epoch_are_those_of_full_batches_or_all(batch_size: int, images: int) -> None:
    config = small(batch_size=batch_size)
    assert Trial(config, data.info(config.data), CPU).images == images


def test_training_reads_no_test_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("the test set was touched")

    monkeypatch.setattr(data, "load_test", forbidden)
    metrics = train(small(epochs=1)).metrics
    assert "val_accuracy" in metrics
    assert not any(name.startswith("test_") for name in metrics)


class TestReproducibility:
    def test_alone_and_after_another_run(self) -> None:
        alone = train(small())
        torch.manual_seed(99)
        train(small(seed=5, weight_bits=2))
        again = train(small())
        assert same(alone.history, again.history)
        assert same_weights(alone.network.state_dict(), again.network.state_dict())

    def test_another_seed_gives_other_numbers(self) -> None:
        assert not same(train(small()).history, train(small(seed=1)).history)

    def test_the_state_of_the_process_is_restored(self) -> None:
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        torch.set_num_threads(2)
        train(small(epochs=1))
        assert torch.equal(torch.rand(3), expected)
        assert torch.get_num_threads() == 2

    def test_a_folder_changes_nothing(self, tmp_path: Path) -> None:
        assert same(train(small()).history, train(small(), folder=tmp_path).history)

    @pytest.mark.parametrize("changes", [{}, {"norm.mode": "paper", "norm.every": 3}])
    def test_resuming_equals_never_stopping(self, tmp_path: Path, changes: dict) -> None:
        config = small(epochs=3, **changes)

        class Stop(Exception):
            pass

        def stop(**row: float) -> None:
            if row["epoch"] == 2:
                raise Stop

        with pytest.raises(Stop):
            train(config, stop, folder=tmp_path)
        rows: list[float] = []
        resumed = train(config, lambda **row: rows.append(row["epoch"]), folder=tmp_path)
        whole = train(config)
        assert rows == [3]
        assert same(resumed.history, whole.history)
        assert same_weights(resumed.network.state_dict(), whole.network.state_dict())


COMMAND = (
    "import sys; from pathlib import Path; from slb_autotune import train, TrialConfig;"
    "train(TrialConfig.from_file(Path(sys.argv[1])), folder=sys.argv[2])"
)


def epochs_done(folder: Path) -> int:
    path = folder / "history.csv"
    return max(0, len(path.read_text().splitlines()) - 1) if path.exists() else -1


def test_killed_at_any_moment_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    """A real process, killed with SIGKILL three times, against one that ran through."""
    config = small(epochs=6, activation_bits=2)
    file = tmp_path / "trial.yaml"
    file.write_text(config.to_yaml())
    folder = tmp_path / "run"
    delays = random.Random()
    for target in (0, 2, 4):
        process = subprocess.Popen([sys.executable, "-c", COMMAND, str(file), str(folder)])
        deadline = time.monotonic() + 120
        while epochs_done(folder) < target and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(delays.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert RunFolder(folder).load_checkpoint()["epoch"] >= 4
    resumed = train(config, folder=folder)
    whole = train(config, folder=tmp_path / "whole")
    assert same(resumed.history, whole.history)
    assert same_weights(resumed.network.state_dict(), whole.network.state_dict())
    kept = [path / "histograms.safetensors" for path in (folder, tmp_path / "whole")]
    assert kept[0].read_bytes() == kept[1].read_bytes()


@pytest.mark.parametrize("method", ["slb", "dorefa"])
def test_a_kill_between_the_files_of_an_epoch_loses_none(tmp_path: Path, method: str) -> None:
    """Also in the last epoch, after which nothing is trained any more."""
    files = RunFolder(tmp_path)
    left: dict[int, tuple[bytes, bytes]] = {}

    def keep(**row: float) -> None:
        left[int(row["epoch"])] = (
            files.histograms_path.read_bytes(),
            files.history_path.read_bytes(),
        )

    train(small(epochs=3, method=method), keep, folder=tmp_path)
    histograms = files.histograms()
    assert all(rows[:, 0].tolist() == [1, 2, 3] for rows in histograms.values())
    assert len(histograms) == 6
    files.histograms_path.write_bytes(left[2][0])
    files.history_path.write_bytes(left[2][1])
    train(small(epochs=3, method=method), folder=tmp_path)
    assert files.histograms_path.read_bytes() == left[3][0]
    assert files.history_path.read_bytes() == left[3][1]


class TestFailures:
    def test_a_loss_that_is_no_number_ends_the_run(self, tmp_path: Path) -> None:
        config = small(lr=1e30, lr_schedule={"name": "constant"})
        with pytest.raises(TrainingFailed) as caught:
            train(config, folder=tmp_path)
        text = str(caught.value)
        assert "the loss became nan in epoch 1, step " in text
        assert "last finite loss: " in text
        assert RunFolder(tmp_path).result()["status"] == "failed"
        assert "epoch 1" in RunFolder(tmp_path).result()["reason"]

    def test_losses_read_in_groups_name_the_right_step(self) -> None:
        losses = Losses(epoch=2, steps=10, every=4)
        for value in (1.0, 2.0, float("inf")):
            losses.add(torch.tensor(value))
        with pytest.raises(
            TrainingFailed, match=r"inf in epoch 3, step 3 of 10; last finite loss: 2"
        ):
            losses.add(torch.tensor(1.0))

    def test_what_cannot_fit_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("slb_autotune.training.loop.free_memory", lambda device: 10_000)
        with pytest.raises(ConfigError, match=r"training needs .* GB .* but cpu has 0.0 GB free"):
            train(small())

    def test_a_folder_of_another_configuration(self, tmp_path: Path) -> None:
        train(small(epochs=1), folder=tmp_path)
        with pytest.raises(CheckpointError, match=r"optimizer\.lr is 0.1 there, 0.2 here"):
            train(small(epochs=1, lr=0.2), folder=tmp_path)
