"""Data sets: what they are like, and their training, validation and test parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slb_autotune.config.registry import DATASETS
from slb_autotune.config.trial import DataConfig
from slb_autotune.data.base import DataInfo, DataSet, Split
from slb_autotune.errors import DataError

__all__ = ["DataInfo", "Split", "info", "load_test", "load_train"]


def info(config: DataConfig) -> DataInfo:
    """Describe the data; no image is read."""
    with _opened(config) as data_set:
        return data_set.info()


def load_train(config: DataConfig) -> tuple[Split, Split | None]:
    """Read the training part and the validation part (None when `val_fraction` is 0)."""
    with _opened(config) as data_set:
        return data_set.train()


def load_test(config: DataConfig) -> Split:
    """Read the test set."""
    with _opened(config) as data_set:
        return data_set.test()


@contextmanager
def _opened(config: DataConfig) -> Iterator[DataSet]:
    """Give the data set, and explain what the file system refuses, whichever part asks it."""
    try:
        yield DATASETS[config.name].load()(config)
    except OSError as error:
        raise DataError(
            f"Cannot read the data set {config.name} from {error.filename or config.root}: "
            f"{error.strerror or error}.",
            "check data.root and that you may read what is in it.",
        ) from error
