"""Studies: what is tried next, what is stopped early, and what is stored.

`driver.py` is the study's process and `worker.py` a trial's; between them goes one loop.
"""

import os
import sys
from pathlib import Path

# Ray reads these when it is imported: no log files of its own, no banner, and Ctrl-C is ours.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
# Ray shows its token by itself where it starts a cluster; where it joins one it must be asked to.
if "ray" not in sys.modules and (
    {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    or (Path.home() / ".ray" / "auth_token").exists()
):
    os.environ.setdefault("RAY_AUTH_MODE", "token")
