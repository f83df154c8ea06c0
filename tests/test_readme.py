"""What the README says can be done."""

import re
from pathlib import Path

import torch

from slb_autotune.config import recipe
from slb_autotune.quant.layers import low_bit_layers

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "epochs=20" in code
    names: dict[str, object] = {}
    exec(code.replace("epochs=20", 'epochs=1, network={"name": "resnet20", "width": 4}'), names)
    (layer,) = low_bit_layers(names["low_bit"]).values()
    assert layer.temperature == 1000
    assert layer.bits == 2
    assert names["predictions"].shape == (8, 10)
    assert torch.isfinite(names["predictions"]).all()


def test_recipes_are_where_it_says() -> None:
    assert "`recipe` of `slb_autotune.config`" in README
    assert recipe("digits").data.name == "digits"
