"""MLflow, and the only room that knows it: a study's folder, mirrored in an MLflow store.

The folder is the truth; a tracker makes MLflow agree with it, in one thread of the driver. What
could not be sent stays in the folder and is sent later, once each: a run is looked for before it
is created, and a metric has the same time stamp whenever it is sent, so sending it again changes
nothing.
"""

from slb_autotune.tracking.entries import StudyEntry, TrialEntry
from slb_autotune.tracking.load import load_epochs, load_runs
from slb_autotune.tracking.recorder import MlflowRecorder, make_recorder
from slb_autotune.tracking.store import (
    configure_environment,
    make_client,
    public_address,
    tracking_uri,
)
from slb_autotune.tracking.tracker import Tracker

__all__ = [
    "MlflowRecorder",
    "StudyEntry",
    "Tracker",
    "TrialEntry",
    "configure_environment",
    "load_epochs",
    "load_runs",
    "make_client",
    "make_recorder",
    "public_address",
    "tracking_uri",
]
