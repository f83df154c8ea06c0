"""The command line: results on standard output, all else on standard error, and exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slb_autotune.cli import catalogue
from slb_autotune.cli import main as cli
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import TrainingFailed
from slb_autotune.training.run_folder import RunFolder
from tests.builders import tiny_config

COMMANDS = [
    [],
    ["train"],
    ["evaluate"],
    ["validate"],
    ["list"],
    ["bench"],
    ["bench", "step"],
    ["bench", "epoch"],
    ["bench", "harness"],
    ["bench", "search"],
    ["bench", "rungs"],
    ["report"],
    ["export"],
    ["ui"],
]
KINDS = ["networks", "data", "methods", "activations", "schedules", "recipes", "fields"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def slb(monkeypatch, capsys, tmp_path):
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["slb-autotune", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return Ended(end.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def tiny(tmp_path) -> str:
    """A file of the tiny configuration."""
    (tmp_path / "tiny.yaml").write_text(tiny_config().to_yaml())
    return "tiny.yaml"


def process(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slb_autotune", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: subprocess.Popen[str]) -> Ended:
    try:
        out, err = started.communicate(timeout=200)
    finally:
        started.kill()
    return Ended(started.returncode, out, err)


def complaint(ended: Ended) -> tuple[str, str]:
    """The message and the hint of a command that refused its input."""
    assert ended.code == 2
    assert ended.out == ""
    found = re.fullmatch(r"error: ([^\n]+)\n(?:hint: ([^\n]+)\n)?", ended.err)
    assert found is not None, ended.err
    return found[1], found[2] or ""


# Whole processes.


def test_a_stopped_run_goes_on_to_the_end_and_can_be_evaluated(slb, tmp_path):
    config = tiny_config(epochs=8)
    (tmp_path / "trial.yaml").write_text(config.to_yaml())
    command = ("train", "trial.yaml", "--json", "--folder", "run")

    started = process(*command, folder=tmp_path)
    assert started.stderr.readline().startswith("epoch 1/8  loss ")
    started.send_signal(signal.SIGINT)
    stopped = finish(started)
    assert stopped.code == 130
    assert stopped.out == ""
    assert "Traceback" not in stopped.err
    assert re.search(
        r"^error: stopped in epoch \d+; whole epochs are kept in run$", *flat(stopped)
    )
    assert re.search(r"^hint: give the same command again to go on\.$", *flat(stopped))
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


def test_names_and_help_need_no_torch():
    code = f"""
import sys
from slb_autotune.cli.main import main

commands = [[*command, "--help"] for command in {COMMANDS}]
for arguments in [*commands, ["list"], ["list", "fields"], ["train", "nothing"], ["--version"]]:
    sys.argv = ["slb-autotune", *arguments]
    try:
        main()
    except SystemExit:
        pass
assert "typer" in sys.modules
print(*sorted({{"torch", "numpy", "pandas"}} & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert result.stderr.splitlines()[-1] == ""


# The same program within this process.


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_there(slb, command):
    ended = slb(*command, "--help")
    assert (ended.code, ended.err) == (0, "")
    # What stands before the command is the name by which the tests were started.
    assert re.match(rf"Usage: .*{' '.join(command)} \[OPTIONS\]", ended.out)


@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if command not in ([], ["bench"])],
    ids=" ".join,
)
def test_help_shows_examples(slb, command):
    out = slb(*command, "--help").out
    assert f"slb-autotune {' '.join(command)} " in out.partition("\n")[2]


def test_the_examples_in_the_help_of_train_are_valid(slb, tmp_path, monkeypatch):
    (tmp_path / "my.yaml").write_text("epochs: 3")
    monkeypatch.setattr(cli, "_train", lambda *_: None)
    examples = re.findall(r"^ +slb-autotune (train .+)$", slb("train", "--help").out, re.M)
    assert len(examples) == 3
    for example in examples:
        assert slb(*example.split()).code == 0


def test_the_version(slb):
    assert slb("--version").out == f"slb-autotune {cli.VERSION}\n"


@pytest.mark.parametrize(
    "arguments", [["trian"], ["train", "--nothing"], ["train", "--epochs", "x"], ["validate"], []]
)
def test_wrong_usage_exits_with_2(slb, arguments):
    ended = slb(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Usage: ")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["validate", "none.yaml"], "there is no file none.yaml", "check the path."),
        (["train", "none.yaml"], "there is no file none.yaml", "check the path."),
        (
            ["train", "digit"],
            "'digit' is neither a recipe nor a YAML file",
            "did you mean 'digits'?",
        ),
        (
            ["train", "--method", "bnn", "--weight-bits", "2"],
            "configuration: weight_bits must be one of 1, 32 with method 'bnn'; got 2",
            "`slb-autotune list fields` shows every field.",
        ),
        (
            ["train", "--weight-bits", "5"],
            "configuration: weight_bits: bits must be one of 1, 2, 3, 4, 8, 32; got 5",
            "`slb-autotune list fields` shows every field.",
        ),
        (
            ["train", "--set", "optimizer.lrr=1"],
            "configuration: optimizer: unknown key 'lrr'",
            "did you mean 'lr'?",
        ),
        (
            ["train", "--set", "epochs"],
            "--set takes FIELD=VALUE; got 'epochs'",
            "for example --set lr=0.05",
        ),
        (
            ["train", "--network", "resnet21"],
            "configuration: network.name: unknown network 'resnet21'",
            "did you mean 'resnet20'?",
        ),
        (
            ["train", "--network", "no_such_module:net"],
            "network 'no_such_module:net': module 'no_such_module' cannot be imported: "
            "No module named 'no_such_module'",
            "start where the module is, or install it.",
        ),
        (
            ["train", "--set", "weight_bits.layer1.0.conv3=2"],
            "weight_bits: no quantisable layer is named 'layer1.0.conv3'",
            "did you mean 'layer1.0.conv2'?",
        ),
        (["train", "--set", "amp=fp16", "--device", "cpu"], "amp: fp16 needs CUDA; this is cpu",
         "use amp: off."),
        (["evaluate", "nothing"], "there is no run 'nothing'",
         "none is in slb-runs; --runs names another folder."),
        (["list", "network"], "there is no list of 'network'", "did you mean 'networks'?"),
        (
            ["evaluate", "."],
            ". is not the folder of a run: it has no config.yaml",
            "`slb-autotune train` prints the folder of a run when it ends.",
        ),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence_and_a_hint(slb, tmp_path, arguments, message, hint):
    assert complaint(slb(*arguments)) == (message, hint)
    assert list(tmp_path.iterdir()) == []


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
    monkeypatch.setattr(cli, "_train", lambda config, folder, *_: seen.update(c=config, f=folder))
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
    assert seen["f"] == Path("here/trials") / cli.run_name(config)


def test_float_needs_no_bits(slb, monkeypatch):
    seen = []
    monkeypatch.setattr(cli, "_train", lambda config, *_: seen.append(config))
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
    assert cli.run_name(config) == start + config.digest


def test_a_run_is_trained_once_and_again_when_asked(slb, tiny):
    first = slb("train", tiny)
    assert first.code == 0
    assert re.fullmatch(
        r"epoch 1/1  loss [\d.]+  T 1000  acc [\d.]+  gap \S+  0 s left\n", first.err
    )
    assert first.out.startswith("network    resnet20 on digits, 1 epoch\n")
    assert " % on validation" in first.out
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
    size = f"{third.json()['metrics']['size_bytes']:,} bytes"
    assert re.fullmatch(rf"done, val_accuracy [\d.]+, {size}", listed[Path(folder).name])

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


def test_what_the_disk_refuses_exits_with_1(slb, tiny):
    ended = slb("train", tiny, "--folder", f"{tiny}/run")
    assert (ended.code, ended.out) == (1, "")
    assert re.fullmatch(r"error: .*Not a directory.*\nhint: check the path.*\n", ended.err)


def test_fresh_keeps_the_old_run_where_the_new_one_cannot_start(slb, tiny):
    slb("train", tiny, "--folder", "run")
    complaint(slb("train", tiny, "--folder", "run", "--fresh", "--set", "amp=fp16"))
    assert RunFolder("run").result() is not None


def test_json_is_json_where_no_layer_is_quantised(slb, tiny):
    slb("train", tiny, "--set", 'keep_float=["*"]', "--json").json()


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_is_shown_in_lines_and_in_json(slb, kind):
    shown = slb("list", kind)
    table = slb("list", kind, "--json").json()
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0] == kind
    assert [line.split()[0] for line in lines[1:]] == list(table)
    assert all(line.endswith(row) for line, row in zip(lines[1:], table.values(), strict=True))


def test_all_lists_together_leave_out_the_fields(slb):
    tables = slb("list", "--json").json()
    assert set(KINDS) - set(tables) == {"fields"}


def test_no_runs_yet(slb):
    assert slb("list", "runs").out == "runs\n  none yet\n"
    assert slb("list", "runs", "--json").json() == {}


def test_fields_show_their_default_and_their_short_name():
    fields = catalogue.catalogue()["fields"]
    assert fields["temperature.T_e"] == "[1000.0] T at the end (also T_e)"
    assert fields["epochs"].startswith("[20]")
    mapping = TrialConfig().to_mapping()
    for name in fields:
        value = mapping
        for part in name.split("."):
            value = value[part]


def test_every_field_is_explained():
    fields = catalogue.catalogue()["fields"]
    bare = [name for name, row in fields.items() if re.fullmatch(r"\[.*\]( \(also .*\))?", row)]
    assert bare == []


def test_unfinished_and_failed_runs_are_listed(slb):
    RunFolder("slb-runs/trials/begun").open(tiny_config())
    RunFolder("slb-runs/trials/failed").open(tiny_config())
    RunFolder("slb-runs/trials/failed").save_result({"status": "failed", "reason": "nan"})
    assert slb("list", "runs", "--json").json() == {"begun": "unfinished", "failed": "failed"}


@pytest.mark.parametrize("text", ["{", "{}"])
def test_a_damaged_result_does_not_hide_the_other_runs(slb, text):
    RunFolder("slb-runs/trials/good").open(tiny_config())
    RunFolder("slb-runs/trials/bad").open(tiny_config())
    RunFolder("slb-runs/trials/bad").result_path.write_text(text)
    assert "good" in slb("list", "runs", "--json").json()


def test_validate_gives_the_whole_configuration_as_json(slb, tiny):
    assert slb("validate", tiny, "--json").json() == {
        "valid": True,
        "config": tiny_config().to_mapping(),
    }


def test_bench_shows_its_table(slb, monkeypatch):
    table = pd.DataFrame([{"network": "resnet20", "side": "float", "cpu_ratio": 1.0}])
    asked = []

    def step(*arguments):
        asked.append(arguments)
        return table

    monkeypatch.setattr("slb_autotune.bench.steps.step", step)
    side = ("--side", "slb 4 bits")
    shown = slb("bench", "step", "--network", "vdsr", "--seconds", "1", "--threads", "1", *side)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.split() == ["network", "side", "cpu_ratio", "resnet20", "float", "1.000"]
    assert asked == [(["vdsr"], 1.0, 1, 100, [], ["slb 4 bits"])]
    assert slb("bench", "step", "--json").json() == table.to_dict("records")
