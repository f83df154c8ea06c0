"""The paper's method: quantised layers, temperature schedules, state batch normalisation."""

from slb_autotune.quant.activations import BiRealSign, DoReFa, Pact
from slb_autotune.quant.convert import quantisable_layers, quantize
from slb_autotune.quant.diagnostics import layer_diagnostics
from slb_autotune.quant.schedules import temperature
from slb_autotune.quant.slb import SLBConv2d, SLBLayer, SLBLinear
from slb_autotune.quant.state_norm import StateBatchNorm2d, calibrate
from slb_autotune.quant.states import network_state

__all__ = [
    "BiRealSign",
    "DoReFa",
    "Pact",
    "SLBConv2d",
    "SLBLayer",
    "SLBLinear",
    "StateBatchNorm2d",
    "calibrate",
    "layer_diagnostics",
    "network_state",
    "quantisable_layers",
    "quantize",
    "temperature",
]
