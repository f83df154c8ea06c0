"""Sensitivity: how much loss a layer costs at a width."""

from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from slb_autotune import data
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError, TrainingFailed
from slb_autotune.search import sensitivity
from slb_autotune.search.allocations import best_allocations
from slb_autotune.search.sensitivity import (
    Probe,
    measure_layers,
    measure_sensitivity,
)
from slb_autotune.training.evaluation import load_run
from tests.builders import tiny_config
from tests.training.configs import photos

CPU = torch.device("cpu")
ONE_STAGE = {"keep_float": ("layer2.*", "layer3.*")}


def digits(**changes: object) -> TrialConfig:
    base = {"width": 4, "epochs": 6, "batch_size": 50, "data.train_images": 400, "device": "cpu"}
    return TrialConfig.from_mapping(base).updated(changes)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sensitivity")
    return measure_sensitivity(digits(), (8, 1, 32), folder=folder, batches=4), folder


@pytest.fixture(scope="module")
def probe(measured: tuple[pd.DataFrame, Path]) -> Probe:
    config, network = load_run(measured[1] / "float", CPU)
    return Probe.of(network, config, 2, CPU)


# Measuring


def test_the_table_has_one_row_per_layer_and_width(
    measured: tuple[pd.DataFrame, Path], probe: Probe
) -> None:
    table, _ = measured
    assert table.columns.tolist() == ["layer", "bits", "loss", "cost", "bytes"]
    layers = probe.layers()
    assert len(layers) == 18
    assert "conv1" not in layers
    assert table["layer"].tolist() == [name for name in layers for _ in range(3)]
    assert table["bits"].tolist() == [1, 8, 32] * len(layers)
    for layer, bits, size in zip(table["layer"], table["bits"], table["bytes"], strict=True):
        weights = probe.weight(layer).numel()
        assert size == (4 * weights if bits == 32 else ceil(weights * bits / 8))


def test_float_layers_cost_nothing_and_cost_is_the_rise_of_the_loss(
    measured: tuple[pd.DataFrame, Path],
) -> None:
    table, _ = measured
    as_float = table[table["bits"] == 32]
    assert (as_float["cost"] == 0).all()
    base = as_float["loss"].iloc[0]
    assert (as_float["loss"] == base).all()
    assert ((table["loss"] - base) == table["cost"]).all()


def test_more_bits_cost_less_on_average(measured: tuple[pd.DataFrame, Path]) -> None:
    costs = measured[0].groupby("bits")["cost"].mean()
    assert costs[1] > 0.01
    assert abs(costs[8]) < 0.1 * costs[1]


def test_the_table_gives_allocations_from_all_small_to_best(
    measured: tuple[pd.DataFrame, Path],
) -> None:
    table, _ = measured
    series = best_allocations(table, sizes=4)
    assert set(series[0].values()) == {1}
    assert len(series) == 4
    assert all(list(bits) == table["layer"].unique().tolist() for bits in series)


@pytest.mark.parametrize("bits", [1, 3])
def test_the_network_is_restored_bit_for_bit(probe: Probe, bits: int) -> None:
    before = {name: value.clone() for name, value in probe.network.state_dict().items()}
    base = probe.loss()
    for layer in probe.layers()[:3]:
        assert probe.loss(layer, bits) != base
        after = probe.network.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
    assert probe.loss() == base


def test_the_network_is_restored_when_measuring_fails(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: value.clone() for name, value in probe.network.state_dict().items()}
    changed = []

    def broken(*_: object) -> None:
        after = probe.network.state_dict()
        changed.extend(name for name in before if not torch.equal(after[name], before[name]))
        raise RuntimeError("stopped")

    monkeypatch.setattr(sensitivity, "measure", broken)
    with pytest.raises(RuntimeError, match="stopped"):
        probe.loss("layer1.0.conv1", 1)
    # That layer alone was quantised; the statistics are new for every BN and were in use.
    assert [name for name in changed if "conv" in name] == ["layer1.0.conv1.weight"]
    assert any(name.endswith("running_mean_c") for name in changed)
    assert not any(name.endswith("_q") for name in changed)
    after = probe.network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_statistics_are_estimated_again_for_the_quantised_layer(probe: Probe) -> None:
    # BN undoes a change of scale, but only if its statistics follow.
    weight = probe.weight("layer2.1.conv1")
    base = probe.loss()
    with torch.no_grad():
        weight.mul_(4.0)
        scaled = probe.loss()
        weight.div_(4.0)
    assert scaled == pytest.approx(base, rel=1e-3)
    assert probe.loss() == base


def test_a_second_call_reads_the_table(
    measured: tuple[pd.DataFrame, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, folder = measured

    def never(*_: object, **__: object) -> None:
        raise AssertionError("called again")

    monkeypatch.setattr(sensitivity, "train", never)
    monkeypatch.setattr(sensitivity, "measure", never)
    again = measure_sensitivity(digits(), (1, 8, 32), folder=folder, batches=4)
    pd.testing.assert_frame_equal(again, table, check_exact=True)
    # The bits of the trial itself play no part in its float network.
    again = measure_sensitivity(digits(weight_bits=2), (32, 8, 1), folder=folder, batches=4)
    pd.testing.assert_frame_equal(again, table, check_exact=True)


def test_other_inputs_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(**ONE_STAGE)
    first = measure_sensitivity(config, (1,), folder=tmp_path, batches=1)
    epochs: list[int] = []
    real = sensitivity.train

    def counted(config: TrialConfig, **keywords: object) -> object:
        return real(config, lambda **row: epochs.append(row["epoch"]), **keywords)

    monkeypatch.setattr(sensitivity, "train", counted)
    wider = measure_sensitivity(config, (1, 2), folder=tmp_path, batches=1)
    assert epochs == [], "a finished run is not trained again"
    assert wider[wider["bits"] == 1]["loss"].tolist() == first["loss"].tolist()
    other = measure_sensitivity(config.replace(seed=1), (1, 2), folder=tmp_path, batches=1)
    assert epochs == [1]
    assert other["loss"].tolist() != wider["loss"].tolist()
    back = measure_sensitivity(config, (1,), folder=tmp_path, batches=1)
    assert epochs == [1, 1]
    pd.testing.assert_frame_equal(back, first, check_exact=True)


def test_a_damaged_cache_is_measured_again(tmp_path: Path) -> None:
    config = tiny_config(**ONE_STAGE)
    first = measure_sensitivity(config, (2,), folder=tmp_path, batches=1)
    (tmp_path / "sensitivity.json").write_text("{")
    (tmp_path / "sensitivity.csv").write_text("layer,bits,loss,cost,bytes\n")
    again = measure_sensitivity(config, (2,), folder=tmp_path, batches=1)
    pd.testing.assert_frame_equal(again, first, check_exact=True)


def test_without_a_validation_split_training_images_replace_it(tmp_path: Path) -> None:
    config = tiny_config(**ONE_STAGE, **{"data.val_fraction": 0.0})
    seen: list[tuple[int, int]] = []
    table = measure_sensitivity(
        config, (1,), folder=tmp_path, batches=1, progress=lambda *at: seen.append(at)
    )
    assert table["layer"].str.startswith("layer1.").all()
    assert seen == [(i, len(table) + 1) for i in range(1, len(table) + 2)]
    split = Probe.of(load_run(tmp_path / "float", CPU)[1], config, 1, CPU).split
    batches = list(split.batches(40))
    assert [len(y) for _, y in batches] == [40, 24]
    assert (len(split), split.steps(40)) == (64, 2)
    # Nothing is augmented: every image is one of the training set, unchanged.
    whole = torch.cat([x for x, _ in data.load_train(config.data)[0].batches(64)])
    assert all((whole == x).flatten(1).all(1).any() for inputs, _ in batches for x in inputs)


def test_a_network_without_bn_is_measured_too(tmp_path: Path) -> None:
    config = photos(**{"network.options": {"depth": 4}, "data.patches": 32})
    table = measure_sensitivity(config, (1, 8), folder=tmp_path, batches=1)
    assert table["layer"].nunique() == 2
    assert np.isfinite(table["loss"]).all()


def test_a_broken_layer_costs_infinity_and_a_broken_network_ends_it(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probe, "loss", lambda _, layer=None, bits=32: 1.0 if bits > 1 else np.nan)
    table = measure_layers(probe, [1, 2])
    assert table["cost"].tolist() == [float("inf"), 0.0] * 18
    monkeypatch.setattr(Probe, "loss", lambda *_: float("nan"))
    with pytest.raises(TrainingFailed, match="of the float network is not a finite number"):
        measure_layers(probe, [1])


def test_bad_inputs_are_explained_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choices must be of 1, 2, 3, 4, 8, 32; got 5"):
        measure_sensitivity(tiny_config(), (1, 5), folder=tmp_path)
    with pytest.raises(ConfigError, match="got none"):
        measure_sensitivity(tiny_config(), (), folder=tmp_path)
    with pytest.raises(ConfigError, match="batches must be at least 1; got 0"):
        measure_sensitivity(tiny_config(), (1,), folder=tmp_path, batches=0)
    assert list(tmp_path.iterdir()) == []


def test_a_network_with_nothing_to_set_is_refused(tmp_path: Path) -> None:
    config = tiny_config(keep_float=("*",))
    with pytest.raises(ConfigError, match="has no layer whose bits can be set"):
        measure_sensitivity(config, (1,), folder=tmp_path, batches=1)
