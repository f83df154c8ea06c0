from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slb_autotune.config.files import parse_yaml
from slb_autotune.config.section import BIT_WIDTHS, SHORT_NAMES, nest
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError

make = TrialConfig.from_mapping

# Words like 1e5 have a test of their own below.
WORDS = st.text(min_size=1, max_size=12)
LAYERS = WORDS | st.sampled_from(
    ["layer1.0.conv1", "layer1.*", "*", "on", "null", "3", "a: b", "# x", "'", "[1]"]
)
WIDTHS = st.sampled_from(BIT_WIDTHS)
POSITIVE = st.floats(min_value=1e-12, max_value=1e12)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "weight_bits": st.sampled_from([1, 2, 3, 4, 8])
        | st.dictionaries(LAYERS, WIDTHS).map(lambda bits: bits | {"first": 1}),
        "activation_bits": WIDTHS | st.dictionaries(LAYERS, WIDTHS),
        "keep_float": st.none() | st.lists(LAYERS),
        "epochs": st.integers(1, 10**6),
        "seed": st.integers(0, 2**32 - 1),
        "lr": POSITIVE,
        "T_s": st.floats(min_value=1e-12, max_value=1000.0),
        "weight_decay": st.floats(min_value=0.0, max_value=1e3),
        "schedule": st.sampled_from(["linear", "sin", "exp", "cosine"]),
        "width": st.none() | st.integers(1, 10**4),
        "network.options": st.dictionaries(
            WORDS,
            st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        ),
        "lr_schedule.milestones": st.lists(st.floats(0.0, 1.0), unique=True).map(sorted),
        "norm.mode": st.sampled_from(["paper", "calibrate", "off"]),
        "data.augment": st.booleans(),
        "device": st.sampled_from(["auto", "cpu", "cuda:1"]),
    },
)

# A field that every section has, and another value of it.
CHANGES = {
    "network.name": "vgg_small",
    "network.width": 8,
    "network.options.order": "conv_prelu_bn",
    "data.name": "cifar10",
    "data.root": "elsewhere",
    "data.val_fraction": 0.2,
    "method": "float",
    "weight_bits": 2,
    "weight_bits.layer1.0.conv1": 1,
    "activation_bits": 4,
    "activation": "pact",
    "keep_float": [],
    "T_s": 0.02,
    "T_e": 10.0,
    "schedule": "sin",
    "temperature.update": "epoch",
    "norm.mode": "paper",
    "norm.eps": 1e-3,
    "lr": 0.05,
    "optimizer.decay_logits": True,
    "lr_schedule.milestones": [0.5],
    "init.spread": 0.1,
    "label_smoothing": 0.1,
    "epochs": 21,
    "batch_size": 10,
    "seed": 1,
    "threads": 2,
    "device": "cpu",
    "amp": "bf16",
    "channels_last": not TrialConfig().channels_last,
}


def error_of(values: dict) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        make(values, "trial.yaml")
    return caught.value


@settings(max_examples=60, deadline=None, database=None)
@given(FIELDS)
def test_json_and_yaml_give_the_same_configuration_back(values):
    config = make(values)
    for copy in (
        make(json.loads(config.to_json())),
        TrialConfig.from_yaml(config.to_yaml()),
        make(config.to_mapping()),
    ):
        assert copy == config
        assert copy.digest == config.digest


@pytest.mark.parametrize("word", ["1e5", "1e-3", "-2E7"])
def test_a_word_that_looks_like_a_number_survives_yaml(word):
    config = make({"data.root": word})
    assert TrialConfig.from_yaml(config.to_yaml()) == config


def test_a_file_gives_the_configuration_that_was_written(tmp_path):
    config = make({"lr": 1e-3, "weight_bits": {"layer1.*": 2}, "keep_float": ["fc"]})
    path = tmp_path / "trial.yaml"
    path.write_text(config.to_yaml())
    assert TrialConfig.from_file(path) == config


def test_an_empty_file_is_the_default():
    assert TrialConfig.from_yaml("") == TrialConfig.from_yaml("# nothing\n") == TrialConfig()


def test_fields_cannot_be_set():
    config = TrialConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.epochs = 3
    with pytest.raises(ValidationError, match="frozen"):
        config.optimizer.lr = 3.0


@pytest.mark.parametrize("field", ["weight_bits", "activation_bits"])
def test_mappings_cannot_be_changed(field):
    config = make({field: {"*": 1}})
    with pytest.raises(TypeError):
        getattr(config, field)["*"] = 5


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_makes_another_configuration_of_another_name(name):
    config = TrialConfig()
    changed = config.updated({name: CHANGES[name]})
    assert changed != config
    assert changed.digest != config.digest
    assert changed == config.updated({name: CHANGES[name]})


def test_the_name_does_not_drift():
    # Run folders are named by it: a change makes every earlier run look like another one.
    assert TrialConfig().digest == make({}).digest == TrialConfig.from_yaml("epochs: 20").digest
    assert make({"lr": 1}).digest == make({"lr": 1.0}).digest
    ab, ba = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert make({"weight_bits": ab}).digest == make({"weight_bits": ba}).digest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": "3"}, "epochs: Input should be a valid integer; got '3'"),
        ({"epochs": 2.0}, "epochs: Input should be a valid integer; got 2.0"),
        ({"epochs": True}, "epochs: Input should be a valid integer; got True"),
        ({"weight_bits": "1"}, "weight_bits: Input should be a valid integer; got '1'"),
        ({"weight_bits": True}, "weight_bits: Input should be a valid integer; got True"),
        ({"lr": "0.1"}, "optimizer.lr: Input should be a valid number; got '0.1'"),
        ({"channels_last": 1}, "channels_last: Input should be a valid boolean; got 1"),
        ({"network": 3}, "network: Input should be an object; got 3"),
        ({"keep_float": "fc"}, "keep_float: Input should be a valid array; got 'fc'"),
        ({"epochs": None}, "epochs: Input should be a valid integer; got None"),
    ],
)
def test_types_are_not_bent(values, message):
    assert error_of(values).message == f"trial.yaml: {message}"


def test_a_whole_number_serves_where_a_number_is_asked_for():
    lr = make({"lr": 1}).optimizer.lr
    assert (lr, type(lr)) == (1.0, float)


@pytest.mark.parametrize(
    ("values", "where", "key", "near"),
    [
        ({"epoch": 3}, "", "epoch", "epochs"),
        ({"optimiser": {"lr": 1.0}}, "", "optimiser", "optimizer"),
        ({"widht": 3}, "", "widht", "width"),
        ({"t_e": 3}, "", "t_e", "T_e"),
        ({"network": {"nam": "resnet20"}}, "network: ", "nam", "name"),
        ({"data": {"rot": "x"}}, "data: ", "rot", "root"),
        ({"temperature": {"Ts": 1}}, "temperature: ", "Ts", "T_s"),
        ({"norm.modes": "off"}, "norm: ", "modes", "mode"),
        ({"optimizer.momentun": 0.5}, "optimizer: ", "momentun", "momentum"),
        ({"lr_schedule.milestone": []}, "lr_schedule: ", "milestone", "milestones"),
        ({"init.spred": 1.0}, "init: ", "spred", "spread"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(values, where, key, near):
    error = error_of(values)
    assert error.message == f"trial.yaml: {where}unknown key {key!r}"
    assert error.hint == f"did you mean {near!r}?"


def test_dotted_nested_and_short_names_are_the_same():
    nested = make({"optimizer": {"lr": 0.5}, "temperature": {"T_e": 7.0}})
    assert make({"optimizer.lr": 0.5, "temperature.T_e": 7.0}) == nested
    assert make({"lr": 0.5, "T_e": 7.0}) == nested
    assert TrialConfig.from_yaml("lr: 0.5\ntemperature: {T_e: 7.0}") == nested


@pytest.mark.parametrize(("short", "long"), SHORT_NAMES.items())
def test_every_short_name_stands_for_a_field(short, long):
    section, field = long.split(".")
    assert field in type(getattr(TrialConfig(), section)).model_fields
    assert nest({short: 1}) == {section: {field: 1}}


def test_dotted_names_of_one_section_are_merged():
    config = make({"lr": 0.5, "optimizer": {"momentum": 0.1}, "optimizer.nesterov": True})
    assert config.optimizer.lr == 0.5
    assert config.optimizer.momentum == 0.1
    assert config.optimizer.nesterov is True


@pytest.mark.parametrize("field", ["weight_bits", "activation_bits"])
def test_a_layers_name_keeps_its_dots(field):
    config = make({f"{field}.layer1.0.conv1": 2, f"{field}.layer2.*": 4})
    assert getattr(config, field) == {"layer1.0.conv1": 2, "layer2.*": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight_bits": 5}, "weight_bits: bits must be one of 1, 2, 3, 4, 8, 32; got 5"),
        ({"weight_bits.a.b": 5}, "weight_bits: bits must be one of 1, 2, 3, 4, 8, 32; got 5"),
        ({"activation_bits": 0}, "activation_bits: bits must be one of 1, 2, 3, 4, 8, 32; got 0"),
        ({"T_e": 0.001}, "temperature: T_e must be at least T_s; got T_s=0.01, T_e=0.001"),
        (
            {"temperature.flat_until": 0.5, "temperature.flat_from": 0.5},
            "temperature: flat_until must be below flat_from; got 0.5 and 0.5",
        ),
        (
            {"lr_schedule.milestones": [0.5, 0.4]},
            "lr_schedule.milestones: milestones must rise; got [0.5, 0.4]",
        ),
        (
            {"lr_schedule.milestones": [0.5, 0.5]},
            "lr_schedule.milestones: milestones must rise; got [0.5, 0.5]",
        ),
        (
            {"lr_schedule.milestones": [0.5, 1.5]},
            "lr_schedule.milestones.1: Input should be less than or equal to 1; got 1.5",
        ),
        (
            {"network.name": "vdsr"},
            "network 'vdsr' is for super_resolution but data set 'digits' is for classification",
        ),
        (
            {"data.name": "photos"},
            "network 'resnet20' is for classification but data set 'photos' is for "
            "super_resolution",
        ),
        (
            {"weight_bits": 32, "activation_bits": 4},
            "activation_bits apply to quantised layers, and with these weight_bits no layer is "
            "quantised; set activation_bits to 32 or lower weight_bits",
        ),
        ({"lr": 0}, "optimizer.lr: Input should be greater than 0; got 0"),
        ({"T_s": float("nan")}, "temperature.T_s: Input should be a finite number; got nan"),
        ({"T_e": float("inf")}, "temperature.T_e: Input should be a finite number; got inf"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0; got -1"),
        ({"data.val_fraction": 1.0}, "data.val_fraction: Input should be less than 1; got 1.0"),
        (
            {"optimizer.nesterov": True, "optimizer.momentum": 0.0},
            "optimizer: nesterov needs name: sgd and momentum above 0",
        ),
        ({"amp": "fp8"}, "amp: Input should be 'off', 'bf16' or 'fp16'; got 'fp8'"),
        ({"epochs": {1, 2}}, "Object of type set is not JSON serializable"),
    ],
)
def test_a_broken_rule_is_stated_with_the_value(values, message):
    error = error_of(values)
    assert error.message == f"trial.yaml: {message}"
    assert error.hint


@pytest.mark.parametrize(
    ("values", "message", "near"),
    [
        ({"network.name": "resnet21"}, "network.name: unknown network 'resnet21'", "resnet20"),
        ({"data.name": "cifar"}, "data.name: unknown data set 'cifar'", "cifar10"),
        ({"method": "slbb"}, "unknown method 'slbb'", "slb"),
        ({"activation": "pakt"}, "unknown activation quantiser 'pakt'", "pact"),
        ({"schedule": "cosin"}, "temperature.schedule: unknown schedule 'cosin'", "cosine"),
    ],
)
def test_an_unknown_name_names_the_nearest_known_one(values, message, near):
    error = error_of(values)
    assert error.message == f"trial.yaml: {message}"
    assert error.hint == f"did you mean {near!r}?"


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "CPU"])
def test_an_unknown_device_is_refused(device):
    assert error_of({"device": device}).message.endswith(f"; got {device!r}")


def test_a_quantiser_refuses_bits_that_it_does_not_have():
    message = error_of({"activation": "sign", "activation_bits": 2}).message
    assert message.endswith("activation_bits must be one of 1, 32 with activation 'sign'; got 2")


def test_the_method_float_means_32_bits():
    config = make({"method": "float"})
    assert (config.weight_bits, config.activation_bits) == (32, 32)
    assert not config.quantises
    assert config == make({"method": "float", "weight_bits": 32})
    assert TrialConfig().updated({"activation_bits": 4}).updated({"method": "float"}) == config


def test_the_method_float_refuses_low_bits():
    message = error_of({"method": "float", "weight_bits": 1}).message
    assert "got 1" in message
    assert message.count("32") == 1


def test_the_method_float_refuses_low_bit_activations():
    assert "no layer is quantised" in error_of({"method": "float", "activation_bits": 4}).message


@pytest.mark.parametrize(
    ("bits", "expected"), [(1, True), (32, False), ({"a": 32, "b": 2}, True), ({"a": 32}, False)]
)
def test_a_configuration_knows_whether_it_quantises(bits, expected):
    assert make({"weight_bits": bits}).quantises is expected


def test_a_network_of_ones_own_goes_with_any_data():
    assert make({"network.name": "mine:net", "data.name": "photos"}).network.name == "mine:net"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", ".1e-2", "+1e-3", "10e-4", "0.001"])
def test_numbers_are_read_as_people_write_them(text):
    assert TrialConfig.from_yaml(f"lr: {text}").optimizer.lr == 0.001


@pytest.mark.parametrize("text", ["1e", "e3", "1e-3x", "resnet20", "v1e3"])
def test_words_stay_words(text):
    assert parse_yaml(f"value: {text}", "file") == {"value": text}


@pytest.mark.parametrize(
    ("text", "key"),
    [("epochs: 1\nepochs: 2", "epochs"), ("optimizer: {lr: 1, lr: 2}", "lr")],
)
def test_a_key_may_not_stand_twice(text, key):
    message = f"^trial.yaml is not YAML: the key '{key}' stands twice.* line \\d+"
    with pytest.raises(ConfigError, match=message):
        TrialConfig.from_yaml(text, "trial.yaml")


@pytest.mark.parametrize(("text", "kind"), [("- 1", "list"), ("epochs", "str"), ("3", "int")])
def test_yaml_must_be_a_mapping(text, kind):
    with pytest.raises(ConfigError) as caught:
        TrialConfig.from_yaml(text, "trial.yaml")
    assert caught.value.message == f"trial.yaml must be a mapping of fields; got a {kind}"
    assert caught.value.hint == "write one `field: value` a line."


@pytest.mark.parametrize("text", ["a: b: c", "{", "\t", "x: !!python/object:os.system {}"])
def test_what_is_not_plain_yaml_is_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^trial.yaml is not YAML: [^\n]+$"):
        TrialConfig.from_yaml(text, "trial.yaml")


@pytest.mark.parametrize("text", ["[a]: 1", "{a: 1}: 2"])
def test_a_list_or_map_as_a_key_is_refused(text):
    with pytest.raises(ConfigError):
        TrialConfig.from_yaml(text)


def test_an_alias_to_itself_is_refused():
    with pytest.raises(ConfigError):
        TrialConfig.from_yaml("data: &a {root: *a}")


def test_merge_keys_work():
    config = TrialConfig.from_yaml("optimizer: {<<: {lr: 0.5, momentum: 0.1}, lr: 0.7}")
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.7, 0.1)


def test_a_name_that_is_not_a_word_is_refused():
    with pytest.raises(ConfigError, match="a field's name must be text; got True"):
        TrialConfig.from_yaml("on: 1")


@pytest.mark.parametrize("value", [[], 3, "word", None])
def test_a_configuration_must_be_a_mapping(value):
    with pytest.raises(ConfigError, match="must be a mapping"):
        TrialConfig.from_mapping(value)


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError) as caught:
        TrialConfig.from_file(path)
    assert caught.value.message == f"there is no file {path}"
    assert caught.value.hint == "check the path."


@pytest.mark.parametrize("kind", ["folder", "bytes"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, kind):
    path = tmp_path
    if kind == "bytes":
        path = tmp_path / "bytes.yaml"
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read: ") as caught:
        TrialConfig.from_file(path)
    assert str(path) in caught.value.message


def test_an_update_leaves_the_rest_as_it_was():
    config = make({"lr": 0.5, "optimizer.momentum": 0.1, "epochs": 3})
    changed = config.updated({"lr": 0.7})
    assert changed.optimizer.momentum == 0.1
    assert changed.epochs == 3
    assert config.optimizer.lr == 0.5
    assert config.replace(optimizer={"lr": 0.7}) == changed


def test_an_update_of_bits_replaces_them():
    config = make({"weight_bits": {"a": 1}})
    assert config.updated({"weight_bits": {"b": 2}}).weight_bits == {"b": 2}
    assert config.updated({"weight_bits": 2}).weight_bits == 2


def test_an_update_is_checked():
    with pytest.raises(ConfigError, match="unknown key 'epcohs'"):
        TrialConfig().updated({"epcohs": 3})


@pytest.mark.parametrize(
    "values", [{"network": "vgg_small", "width": 4}, {"width": 4, "network": "vgg_small"}]
)
def test_a_section_given_by_its_name_keeps_what_stands_beside_it(values: dict[str, Any]) -> None:
    config = TrialConfig.from_mapping(values)
    assert (config.network.name, config.network.width) == ("vgg_small", 4)
    again = TrialConfig().updated(values)
    assert again.network == config.network


def test_a_name_given_in_two_ways_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"network\.name is given twice"):
        TrialConfig.from_mapping({"network": "vgg_small", "network.name": "resnet20"})


@pytest.mark.parametrize("field", ["amp", "norm.mode"])
def test_a_bare_off_of_yaml_is_the_word(field: str) -> None:
    name, _, part = field.partition(".")
    text = f"{name}: {{{part}: off}}" if part else f"{name}: off"
    assert TrialConfig.from_yaml(text).flat()[field] == "off"
