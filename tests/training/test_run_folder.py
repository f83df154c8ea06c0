from __future__ import annotations

import os
import pickle
import zipfile

import pandas as pd
import pytest
import torch

from slb_autotune.config.files import write_atomically
from slb_autotune.errors import CheckpointError
from slb_autotune.training.run_folder import RunFolder, load_tensors
from slb_autotune.version import VERSION
from tests.builders import tiny_config

STATE = {
    "network": {"weight": torch.arange(3.0)},
    "optimizer": {},
    "history": [{"epoch": 1, "train_loss": 0.5}],
    "epoch": 1,
    "histograms": {"layer": torch.arange(43.0).view(1, 43)},
}


class Evil:
    """A pickle that would make a folder when it is read."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def names(folder: RunFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


def test_a_write_leaves_the_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"one")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_comes_back_with_the_history_beside_it(folder):
    folder.open(tiny_config())
    folder.save_checkpoint(STATE)
    state = folder.load_checkpoint()
    assert torch.equal(state["network"]["weight"], torch.arange(3.0))
    assert state["epoch"] == 1
    assert state["version"] == VERSION
    assert pd.read_csv(folder.history_path).to_dict("records") == STATE["history"]
    assert torch.equal(folder.histograms()["layer"], STATE["histograms"]["layer"])
    kept = {"config.yaml", "checkpoint.pt", "history.csv", "histograms.safetensors"}
    assert names(folder) == kept


def test_there_is_nothing_at_the_start(folder):
    assert folder.load_checkpoint() is None
    assert folder.result() is None
    assert folder.histograms() == {}


def test_a_network_without_low_bit_layers_has_no_histograms(folder):
    folder.open(tiny_config())
    folder.save_checkpoint({**STATE, "histograms": {}})
    assert names(folder) == {"config.yaml", "checkpoint.pt", "history.csv"}


def test_damaged_histograms_give_one_clear_sentence(folder):
    folder.open(tiny_config())
    folder.save_checkpoint(STATE)
    whole = folder.histograms_path.read_bytes()
    for content in (whole[:-1], b"noise", b""):
        folder.histograms_path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"histograms.safetensors is damaged Hint"):
            folder.histograms()


def test_a_result_comes_back(folder):
    folder.open(tiny_config())
    folder.save_result({"status": "done", "metrics": {"val_accuracy": 90.0}})
    assert folder.result() == {
        "status": "done",
        "metrics": {"val_accuracy": 90.0},
        "version": VERSION,
    }


def test_clear_deletes_the_run_and_leaves_other_files(folder):
    folder.open(tiny_config())
    folder.save_checkpoint(STATE)
    folder.save_result({"status": "done"})
    (folder.path / "notes.txt").touch()
    folder.clear()
    assert names(folder) == {"notes.txt"}


@pytest.mark.parametrize(
    "damage",
    [
        "cut",
        "noise",
        "empty",
    ],
)
def test_a_damaged_checkpoint_gives_one_clear_sentence(folder, damage):
    folder.open(tiny_config())
    folder.save_checkpoint(STATE)
    whole = folder.checkpoint_path.read_bytes()
    contents = {"cut": whole[: len(whole) // 2], "noise": b"not a checkpoint", "empty": b""}
    folder.checkpoint_path.write_bytes(contents[damage])
    with pytest.raises(CheckpointError) as caught:
        folder.load_checkpoint()
    error = caught.value
    assert error.message.startswith(f"{folder.checkpoint_path} cannot be read as a checkpoint")
    assert "\n" not in error.message
    assert error.hint == "delete the file to start again, or give another one."


@pytest.mark.parametrize("form", ["zip", "pickle"])
def test_a_pickle_that_would_run_code_is_refused(folder, tmp_path, form):
    trap, path = tmp_path / "trap", tmp_path / "evil.pt"
    if form == "zip":
        torch.save({"network": Evil(trap)}, path)
        assert zipfile.is_zipfile(path)
    else:
        path.write_bytes(pickle.dumps({"network": Evil(trap)}, protocol=2))
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint") as caught:
        load_tensors(path)
    assert not trap.exists()
    assert "\n" not in caught.value.message


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"^there is no checkpoint .*none.pt Hint: check"):
        load_tensors(tmp_path / "none.pt")


def test_a_file_of_something_else_is_not_a_state_dict(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match=r"list.pt holds a list, not a state dict$"):
        load_tensors(tmp_path / "list.pt")


def test_a_checkpoint_of_another_program_is_refused(folder):
    folder.open(tiny_config())
    torch.save({"state_dict": {}}, folder.checkpoint_path)
    with pytest.raises(CheckpointError, match=r"is not a checkpoint of slb_autotune$"):
        folder.load_checkpoint()


def test_the_same_configuration_may_resume(folder):
    folder.open(tiny_config())
    folder.open(tiny_config())
    assert folder.config() == tiny_config()


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"epochs": 7}, "epochs is 1 there, 7 here"),
        ({"lr": 0.5}, "optimizer.lr is 0.1 there, 0.5 here"),
        ({"data.name": "fashion_mnist"}, "data.name is 'digits' there, 'fashion_mnist' here"),
        ({"keep_float": []}, "keep_float is None there, [] here"),
        (
            {"network.options.order": "conv_prelu_bn"},
            "network.options is {'blocks': 1} there, {'blocks': 1, 'order': 'conv_prelu_bn'} here",
        ),
    ],
)
def test_another_configuration_is_refused_by_the_field_that_differs(folder, change, difference):
    folder.open(tiny_config())
    with pytest.raises(CheckpointError) as caught:
        folder.open(tiny_config(**change))
    assert caught.value.message == (
        f"{folder.path} holds a run of another configuration: {difference}"
    )
    assert caught.value.hint == "choose another folder."
    assert folder.config() == tiny_config()


@pytest.mark.parametrize(("there", "here"), [({"a": 1, "b": 2}, {"a": 1}), (1, {})])
def test_bits_of_more_layers_are_another_configuration(folder, there, here):
    folder.open(tiny_config(weight_bits=there))
    with pytest.raises(CheckpointError, match="weight_bits"):
        folder.open(tiny_config(weight_bits=here))


def test_a_map_of_bits_is_shown_whole(folder):
    folder.open(tiny_config(weight_bits={"*": 2}))
    with pytest.raises(CheckpointError, match=r"weight_bits is \{'\*': 2\} there, 1 here"):
        folder.open(tiny_config())


def test_a_folder_without_a_run_is_named(folder):
    with pytest.raises(CheckpointError) as caught:
        folder.config()
    assert caught.value.message == (
        f"{folder.path} is not the folder of a run: it has no config.yaml"
    )


def test_a_damaged_result_gives_one_clear_sentence(folder):
    folder.open(tiny_config())
    folder.result_path.write_text("{")
    with pytest.raises(CheckpointError, match=r"result.json is damaged Hint: delete it"):
        folder.result()
