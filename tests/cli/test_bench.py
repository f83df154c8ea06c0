"""bench: what is measured elsewhere, printed."""

from __future__ import annotations

import pandas as pd


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
