"""Figures: each is computed as a small table, then drawn in one of two themes."""

from slb_autotune.report.figures.curves import (
    draw_diagnostics,
    draw_schedules,
    draw_weight_histogram,
)
from slb_autotune.report.figures.fronts import draw_bits, draw_front, draw_hypervolume
from slb_autotune.report.figures.interactive import (
    interactive_front,
    interactive_hypervolume,
    interactive_page,
)
from slb_autotune.report.figures.pictures import Box, Picture, draw_strip
from slb_autotune.report.figures.searching import (
    draw_budgets,
    draw_importance,
    draw_response,
    draw_sensitivity,
)
from slb_autotune.report.figures.theme import THEMES, save, svg_text

__all__ = [
    "THEMES",
    "Box",
    "Picture",
    "draw_bits",
    "draw_budgets",
    "draw_diagnostics",
    "draw_front",
    "draw_hypervolume",
    "draw_importance",
    "draw_response",
    "draw_schedules",
    "draw_sensitivity",
    "draw_strip",
    "draw_weight_histogram",
    "interactive_front",
    "interactive_hypervolume",
    "interactive_page",
    "save",
    "svg_text",
]
