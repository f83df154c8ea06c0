"""The paper's method and its rivals: low-bit layers, temperature schedules, state BN."""

from slb_autotune.quant.activations import BiRealSign, DoReFa, Pact
from slb_autotune.quant.convert import quantisable_layers, quantize
from slb_autotune.quant.diagnostics import layer_diagnostics
from slb_autotune.quant.layers import LowBitLayer
from slb_autotune.quant.schedules import temperature
from slb_autotune.quant.slb import SLBConv2d, SLBLayer, SLBLinear
from slb_autotune.quant.state_norm import StateBatchNorm2d, calibrate, set_step
from slb_autotune.quant.states import network_state, set_temperature

__all__ = [
    "BiRealSign",
    "DoReFa",
    "LowBitLayer",
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
    "set_step",
    "set_temperature",
    "temperature",
]
