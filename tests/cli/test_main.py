"""The command line as a whole: help, usage, errors and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from slb_autotune.version import VERSION
from tests.cli.helpers import complaint

COMMANDS = [
    [],
    ["train"],
    ["evaluate"],
    ["validate"],
    ["list"],
    ["search"],
    ["resume"],
    ["confirm"],
    ["recommend"],
    ["sensitivity"],
    ["report"],
    ["export"],
    ["ui"],
    ["bench"],
    ["bench", "step"],
    ["bench", "epoch"],
    ["bench", "harness"],
    ["bench", "search"],
    ["bench", "rungs"],
]


def test_names_and_help_need_no_torch():
    code = f"""
import sys
from slb_autotune.cli.main import main

commands = [[*command, "--help"] for command in {COMMANDS}]
lists = [["list"], ["list", "fields"], ["list", "metrics"]]
for arguments in [*commands, *lists, ["train", "nothing"], ["--version"]]:
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


def test_the_version(slb):
    assert slb("--version").out == f"slb-autotune {VERSION}\n"


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


def test_what_the_disk_refuses_exits_with_1(slb, tiny):
    ended = slb("train", tiny, "--folder", f"{tiny}/run")
    assert (ended.code, ended.out) == (1, "")
    assert re.fullmatch(r"error: .*Not a directory.*\nhint: check the path.*\n", ended.err)
