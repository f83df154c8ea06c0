"""MLflow, and the only room that knows it: a study's folder, told again to an MLflow store.

The folder is the truth; a tracker makes MLflow agree with it, in one thread of the driver. What
could not be told stays in the folder and is told later, once each: a run is looked for before it
is made, and a metric has the same time stamp whenever it is sent, so sending it again changes
nothing.
"""

from slb_autotune.tracking.entries import StudyEntry, TrialEntry
from slb_autotune.tracking.load import load_epochs, load_runs
from slb_autotune.tracking.store import make_client, place_of, settle_environment, tracking_uri
from slb_autotune.tracking.tracker import Tracker

__all__ = [
    "StudyEntry",
    "Tracker",
    "TrialEntry",
    "load_epochs",
    "load_runs",
    "make_client",
    "place_of",
    "settle_environment",
    "tracking_uri",
]
