"""Files that ship inside scikit-learn's wheel.

The package is located, not imported: that would take a second for every worker of a study.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from slb_autotune.errors import DataError


def embedded_file(*parts: str) -> Path:
    """The path of a file of `sklearn.datasets`."""
    spec = find_spec("sklearn")
    for root in (spec and spec.submodule_search_locations) or ():
        path = Path(root, "datasets", *parts)
        if path.is_file():
            return path
    raise DataError(
        f"scikit-learn has no file datasets/{'/'.join(parts)}, which this data set is read from",
        "reinstall it: pip install --force-reinstall scikit-learn",
    )
