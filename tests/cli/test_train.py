"""train, evaluate and validate."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.cli import train
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import TrainingFailed
from slb_autotune.training.run_folder import RunFolder
from tests.builders import tiny_config
from tests.cli.helpers import Ended, complaint, finish, played_study, process


def test_a_stopped_run_continues_to_the_end_and_can_be_evaluated(slb, tmp_path):
    config = tiny_config(epochs=8)
    (tmp_path / "trial.yaml").write_text(config.to_yaml())
    command = ("train", "trial.yaml", "--json", "--folder", "run")

    started = process(*command, folder=tmp_path)
    assert started.stderr.readline().startswith("epoch 1/8  Train loss ")
    started.send_signal(signal.SIGINT)
    stopped = finish(started)
    assert stopped.code == 130
    assert stopped.out == ""
    assert "Traceback" not in stopped.err
    assert re.search(
        r"^error: stopped in epoch \d+; whole epochs are kept in run$", *flat(stopped)
    )
    assert re.search(r"^hint: give the same command again to continue\.$", *flat(stopped))
    kept = len(pd.read_csv(tmp_path / "run" / "history.csv"))
    assert 1 <= kept < 8

    ended = slb(*command)
    assert ended.code == 0
    assert ended.err.startswith(f"epoch {kept + 1}/8  ")
    result = ended.json()
    assert result["folder"] == "run"
    assert result["config"] == config.to_mapping()
    assert result["metrics"]["epoch"] == 8
    assert pd.read_csv(tmp_path / "run" / "history.csv")["epoch"].tolist() == [*range(1, 9)]

    measured = slb("evaluate", "run", "--json")
    assert (measured.code, measured.err) == (0, "")
    metrics = measured.json()["metrics"]
    assert metrics["test_images"] == 359
    assert 0 <= metrics["test_accuracy"] <= 100
    assert metrics["size_bytes"] == result["metrics"]["size_bytes"]

    both = slb("evaluate", "run", "--layers", "--json").json()
    assert both["metrics"] == metrics
    assert sum(layer["bytes"] for layer in both["layers"]) == metrics["size_bytes"]
    assert "test_accuracy" in slb("evaluate", "run", "--layers").out


def flat(ended: Ended) -> tuple[str, int]:
    return ended.err, re.MULTILINE


@pytest.mark.parametrize(
    ("text", "code", "out", "err"),
    [
        ("epochs: 3", 0, r"trial.yaml is valid: resnet20-digits-w1a32-\w{10}, 3 epochs\n", ""),
        (
            "epochs: 0",
            2,
            "",
            r"error: trial.yaml: epochs: Input should be greater than or equal to 1; got 0\n"
            r"hint: `slb-autotune list fields` shows every field\.\n",
        ),
    ],
)
def test_a_file_is_validated(tmp_path, text, code, out, err):
    (tmp_path / "trial.yaml").write_text(text)
    ended = finish(process("validate", "trial.yaml", folder=tmp_path))
    assert ended.code == code
    assert re.fullmatch(out, ended.out)
    assert re.fullmatch(err, ended.err)


def test_the_examples_in_the_help_of_train_are_valid(slb, tmp_path, monkeypatch):
    (tmp_path / "my.yaml").write_text("epochs: 3")
    monkeypatch.setattr(train, "train_run", lambda *_: None)
    examples = re.findall(r"^ +slb-autotune (train .+)$", slb("train", "--help").out, re.M)
    assert len(examples) == 3
    for example in examples:
        assert slb(*example.split()).code == 0


def test_a_run_without_its_data_leaves_no_folder(slb, tmp_path):
    message, _ = complaint(slb("train", "cifar10_resnet20_short", "--root", "nowhere"))
    assert "nowhere" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("key", "command"), [("space", "search"), ("points", "confirm")])
def test_training_a_study_names_the_command_for_it(slb, tmp_path, key, command):
    (tmp_path / "study.yaml").write_text(f"name: mine\n{key}: {{}}\n")
    message, hint = complaint(slb("train", "study.yaml"))
    assert message == "study.yaml is a study, which has many trials"
    assert hint == f"run it: slb-autotune {command} study.yaml"


def test_bad_yaml_in_an_option_names_the_option(slb):
    message, _ = complaint(slb("train", "--weight-bits", "{a: 1"))
    assert message.startswith("--weight-bits is not YAML: ")


def test_a_network_that_does_not_take_the_images_is_bad_input(slb):
    complaint(slb("train", "digits", "--network", "torchvision:resnet18", "--set", "width=null"))


def test_options_and_settings_reach_the_configuration(slb, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        train, "train_run", lambda config, folder, *_: seen.update(c=config, f=folder)
    )
    ended = slb(
        *("train", "digits", "--weight-bits", '{layer1.*: 2, "*": 1}', "--T-e", "10", "--lr", "1"),
        *("--set", "norm.mode=paper", "--set", "optimizer.weight_decay=1e-3", "--seed", "3"),
        *("--runs", "here", "--schedule", "sin", "--width", "4", "--batch-size", "7"),
    )
    assert ended.code == 0
    config = seen["c"]
    assert config.weight_bits == {"layer1.*": 2, "*": 1}
    assert (config.temperature.T_e, config.temperature.schedule) == (10.0, "sin")
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (1.0, 1e-3)
    assert (config.norm.mode, config.seed, config.batch_size) == ("paper", 3, 7)
    assert config.network.width == 4
    assert seen["f"] == Path("here/trials") / train.run_name(config)


def test_float_needs_no_bits(slb, monkeypatch):
    seen = []
    monkeypatch.setattr(train, "train_run", lambda config, *_: seen.append(config))
    slb("train", "digits", "--method", "float")
    assert (seen[0].weight_bits, seen[0].activation_bits) == (32, 32)


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ({}, "resnet20-digits-w1a32-"),
        ({"weight_bits": {"*": 2}, "activation_bits": 4}, "resnet20-digits-wmixa4-"),
        ({"network.name": "torchvision:resnet18"}, "torchvision-resnet18-digits-w1a32-"),
    ],
)
def test_a_run_is_named_by_its_settings(values, start):
    config = TrialConfig.from_mapping(values)
    assert train.run_name(config) == start + config.digest


def test_a_run_is_trained_once_and_again_when_asked(slb, tiny):
    first = slb("train", tiny)
    assert first.code == 0
    assert re.fullmatch(
        r"epoch 1/1  Train loss \S+  T 1000  Val. accuracy [\d.]+ %  Gap \S+  0 s left\n",
        first.err,
    )
    assert first.out.startswith("network                resnet20 on digits, 1 epoch\n")
    assert re.search(r"^validation accuracy +[\d.]+ % \(continuous", first.out, re.M)
    assert re.search(r"^size +[\d.]+ kB, [\d.]+ times smaller", first.out, re.M)
    folder = re.search(r"^run +(\S+)$", first.out, re.M)[1]
    assert first.out.endswith(f"slb-autotune evaluate {folder}\n")

    second = slb("train", tiny)
    assert second == Ended(
        0, first.out, f"{folder} is trained already; --fresh trains it again.\n"
    )
    third = slb("train", tiny, "--fresh", "--json")
    assert third.err == first.err
    assert third.json()["folder"] == folder

    listed = slb("list", "runs", "--json").json()
    assert list(listed) == [Path(folder).name]
    size = f"{third.json()['metrics']['size_bytes'] / 1000:.1f} kB"
    assert re.fullmatch(
        rf"done, validation accuracy [\d.]+ %, size {size}", listed[Path(folder).name]
    )

    by_name = slb("evaluate", Path(folder).name)
    assert (by_name.code, by_name.err) == (0, "")
    assert re.search(r"^test_images +359$", by_name.out, re.M)
    assert re.search(r"^average_weight_bits +1$", by_name.out, re.M)
    assert slb("evaluate", folder) == by_name


def test_a_folder_of_another_configuration_is_refused(slb, tiny):
    assert slb("train", tiny, "--folder", "run").code == 0
    message, hint = complaint(slb("train", tiny, "--folder", "run", "--lr", "0.2"))
    assert message == (
        "run holds a run of another configuration: optimizer.lr is 0.1 there, 0.2 here"
    )
    assert hint == "choose another folder."


def test_an_unfinished_run_is_not_evaluated(slb, tiny, monkeypatch):
    RunFolder("run").open(tiny_config())
    message, hint = complaint(slb("evaluate", "run"))
    assert message == "the run in run has done 0 of 1 epochs"
    assert hint.startswith("finish it first")


def test_a_training_that_fails_exits_with_1(slb, tiny, monkeypatch):
    def fail(*_, **__):
        raise TrainingFailed("the loss became nan in epoch 1", "lower lr.")

    monkeypatch.setattr("slb_autotune.training.loop.train", fail)
    assert slb("train", tiny) == Ended(
        1, "", "error: the loss became nan in epoch 1\nhint: lower lr.\n"
    )


def test_fresh_keeps_the_old_run_where_the_new_one_cannot_start(slb, tiny):
    slb("train", tiny, "--folder", "run")
    complaint(slb("train", tiny, "--folder", "run", "--fresh", "--set", "amp=fp16"))
    assert RunFolder("run").result() is not None


def test_json_is_json_where_no_layer_is_quantised(slb, tiny):
    slb("train", tiny, "--set", 'keep_float=["*"]', "--json").json()


def test_a_trial_of_a_study_is_trained_again(slb, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(train, "train_run", lambda config, *_: seen.append(config))
    study = played_study(tmp_path / "other")
    assert slb("train", "tiny:1", "--runs", "other", "--seed", "7").code == 0
    assert seen == [study.records[1].config.updated({"seed": 7})]
    message, hint = complaint(slb("train", "tiny:9", "--runs", "other"))
    assert (message, hint) == ("study 'tiny' has no trial 9", "it has 0, 1, 2.")
    assert complaint(slb("train", "tiny:1")) == ("there is no study 'tiny'", "none is known.")


def test_validate_gives_the_whole_configuration_as_json(slb, tiny):
    assert slb("validate", tiny, "--json").json() == {
        "valid": True,
        "config": tiny_config().to_mapping(),
    }
