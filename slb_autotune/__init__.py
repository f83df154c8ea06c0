"""slb_autotune: search for networks of low-bit weights (SLB).

The public names load on first use, so `import slb_autotune` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slb_autotune.version import VERSION as __version__

if TYPE_CHECKING:
    from slb_autotune.api import Study as Study
    from slb_autotune.config.trial import TrialConfig as TrialConfig
    from slb_autotune.errors import SlbError as SlbError
    from slb_autotune.quant.convert import quantisable_layers as quantisable_layers
    from slb_autotune.quant.convert import quantize as quantize
    from slb_autotune.quant.schedules import temperature as temperature
    from slb_autotune.tracking import load_runs as load_runs
    from slb_autotune.training.evaluation import evaluate as evaluate
    from slb_autotune.training.loop import train as train

_LAZY = {
    "SlbError": "slb_autotune.errors",
    "Study": "slb_autotune.api",
    "TrialConfig": "slb_autotune.config.trial",
    "evaluate": "slb_autotune.training.evaluation",
    "load_runs": "slb_autotune.tracking",
    "quantisable_layers": "slb_autotune.quant.convert",
    "quantize": "slb_autotune.quant.convert",
    "temperature": "slb_autotune.quant.schedules",
    "train": "slb_autotune.training.loop",
}

__all__ = ["__version__", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
