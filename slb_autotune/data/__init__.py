"""Data sets: a description, and the training, validation and test splits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slb_autotune.config.registry import DATASETS
from slb_autotune.config.trial import DataConfig
from slb_autotune.data.base import DataInfo, DataSet, Split
from slb_autotune.errors import DataError

__all__ = ["DataInfo", "Split", "info", "load_test", "load_train"]


def info(config: DataConfig) -> DataInfo:
    """The description of the data; no image is read."""
    with _opened(config) as data_set:
        return data_set.info()


def load_train(config: DataConfig) -> tuple[Split, Split | None]:
    """The training split and the validation split (None when `val_fraction` is 0)."""
    with _opened(config) as data_set:
        return data_set.train()


def load_test(config: DataConfig) -> Split:
    """The test set."""
    with _opened(config) as data_set:
        return data_set.test()


@contextmanager
def _opened(config: DataConfig) -> Iterator[DataSet]:
    """The data set; an error of the file system, in any of its methods, becomes a DataError."""
    try:
        yield DATASETS[config.name].load()(config)
    except OSError as error:
        raise DataError(
            f"Cannot read the data set {config.name} from {error.filename or config.root}: "
            f"{error.strerror or error}.",
            "check data.root and that you may read what is in it.",
        ) from error
