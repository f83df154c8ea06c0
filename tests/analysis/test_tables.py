"""The tables of measurements: their types, their files, and that bytes do not drift."""

from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.analysis.tables import (
    EPOCH_COLUMNS,
    RUN_COLUMNS,
    bits_label,
    config_columns,
    layer_bits,
    read_epochs,
    read_runs,
    typed,
    write,
)
from slb_autotune.errors import DataError
from tests.builders import tiny_config

ROWS = [
    {"study": "s", "trial": 3, "status": "done", "weight_bits": "1", "T_e": 10, "on_front": True},
    {"study": "s", "trial": 4, "status": "failed", "reason": 'a "comma", here', "size_bytes": 12},
    {},
]


def test_every_column_has_its_type_however_little_is_known() -> None:
    for rows in (ROWS, [], [{}]):
        frame = typed(rows, RUN_COLUMNS)
        assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == RUN_COLUMNS
    frame = typed(ROWS, RUN_COLUMNS)
    assert frame.loc[0, "T_e"] == 10.0
    assert frame.loc[2, "study"] == ""
    assert frame["size_bytes"].isna().tolist() == [True, False, True]


def test_a_file_gives_back_the_table_and_the_same_bytes(tmp_path: Path) -> None:
    runs = typed(ROWS, RUN_COLUMNS)
    write(runs, tmp_path / "new" / "runs.csv")
    again = read_runs(tmp_path / "new" / "runs.csv")
    pd.testing.assert_frame_equal(again, runs)
    write(again, tmp_path / "twice.csv")
    first = (tmp_path / "new" / "runs.csv").read_bytes()
    assert (tmp_path / "twice.csv").read_bytes() == first
    assert b"test_psnr" not in first  # nothing fills it

    epochs = typed([{"study": "s", "trial": 1, "epoch": 2, "lr": 0.1}], EPOCH_COLUMNS)
    write(epochs, tmp_path / "epochs.csv")
    pd.testing.assert_frame_equal(read_epochs(tmp_path / "epochs.csv"), epochs)


def test_a_text_that_reads_like_nothing_is_kept(tmp_path: Path) -> None:
    runs = typed([{"study": "null", "trial": 1, "reason": "NA"}], RUN_COLUMNS)
    write(runs, tmp_path / "runs.csv")
    pd.testing.assert_frame_equal(read_runs(tmp_path / "runs.csv"), runs)


@pytest.mark.parametrize("text", [None, "", "study,colour\ns,red\n", "study,T_e\ns,hot\n"])
def test_a_file_that_is_no_table_is_one_sentence(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "runs.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError) as error:
        read_runs(path)
    assert "runs.csv" in error.value.message
    assert "\n" not in error.value.message


def test_the_columns_of_a_configuration() -> None:
    row = config_columns(tiny_config(T_e=50.0, weight_bits=2))
    assert row.keys() <= RUN_COLUMNS.keys()
    assert (row["weight_bits"], row["T_e"], row["norm"]) == ("2", 50.0, "calibrate")
    plain = config_columns(tiny_config(method="float"))
    assert (plain["weight_bits"], plain["T_e"], plain["schedule"]) == ("32", None, "")


def test_the_label_of_bits() -> None:
    assert bits_label(4) == "4"
    assert bits_label({"a": 2, "b": 2}) == "2"
    assert bits_label({"a": 2, "b": 1}) == "mixed"
    assert layer_bits("") == {}
    assert layer_bits('{"a": 2}') == {"a": 2}
