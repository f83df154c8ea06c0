"""Small statistics that several parts of an analysis share."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's rank correlation; NaN where it is not defined."""
    from scipy.stats import spearmanr  # takes a second to import

    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    defined = len(a) >= 3 and np.ptp(a) > 0 and np.ptp(b) > 0
    return float(spearmanr(a, b).statistic) if defined else math.nan


def spearman_interval(r: float, count: int) -> tuple[float, float]:
    """The interval of 95 % of a rank correlation over so many pairs.

    That of Bonett and Wright (2000): Fisher's z with a variance of (1 + r**2 / 2) / (n - 3).
    """
    centre = math.atanh(max(-0.999999, min(0.999999, r)))
    reach = 1.96 * math.sqrt((1 + r**2 / 2) / (count - 3))
    return math.tanh(centre - reach), math.tanh(centre + reach)
