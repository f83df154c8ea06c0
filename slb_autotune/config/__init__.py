"""What can be said: trials, studies, and every name and metric that they may use."""

from slb_autotune.config.recipes import recipe
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig

__all__ = ["StudyConfig", "TrialConfig", "recipe"]
