"""The methods of quantisation that can be chosen by name: of weights, and of activations."""

from __future__ import annotations

from slb_autotune.config.registry import Entry, Registry


def _rival(
    name: str,
    summary: str,
    target: str,
    *,
    weight_bits: tuple[int, ...],
    activation: str | None,
    paper: str,
    temperature: bool = False,
) -> Entry:
    details = {"weight_bits": weight_bits, "activation": activation, "paper": paper}
    path = f"slb_autotune.quant.rivals.{target}.from_float"
    return Entry(name, summary, path, {**details, "temperature": temperature})


# A method's details: `weight_bits` that it has, `activation` (its own activation quantiser; None:
# activations stay float), `paper`, and whether the trial's `temperature` moves it.
METHODS = Registry(
    "method",
    (
        Entry(
            "slb",
            "Searching for Low-Bit Weights (Yang et al., NeurIPS 2020): the paper's method",
            "slb_autotune.quant.slb:from_float",
            {
                "weight_bits": (1, 2, 3, 4, 8),
                "activation": "dorefa",
                "paper": "Searching for Low-Bit Weights in Quantized Neural Networks "
                "(Yang et al., 2020)",
                "temperature": True,
            },
        ),
        Entry(
            "float",
            "no quantisation: the 32-bit baseline",
            "slb_autotune.quant.convert:keep_float",
            {"weight_bits": (32,), "activation": None, "paper": "", "temperature": False},
        ),
        _rival(
            "bnn",
            "signs of weights and activations, no scale",
            "binary:BnnWeight",
            weight_bits=(1,),
            activation="clipped_sign",
            paper="Binarized Neural Networks (Hubara et al., 2016)",
        ),
        _rival(
            "bwn",
            "signs with a scale for every filter; activations stay float",
            "binary:BwnWeight",
            weight_bits=(1,),
            activation=None,
            paper="XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks "
            "(Rastegari et al., 2016)",
        ),
        _rival(
            "xnor",
            "BWN's weights, and signs of activations with a scale for every position",
            "binary:BwnWeight",
            weight_bits=(1,),
            activation="xnor",
            paper="XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks "
            "(Rastegari et al., 2016)",
        ),
        _rival(
            "dorefa",
            "uniform steps: tanh-shaped weights, activations clipped to [0, 1]",
            "dorefa:DoReFaWeight",
            weight_bits=(1, 2, 3, 4, 8),
            activation="dorefa",
            paper="DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low "
            "Bitwidth Gradients (Zhou et al., 2016)",
        ),
        _rival(
            "lqnet",
            "a learned basis for every filter, by least quantisation error",
            "lqnet:LqNetWeight",
            weight_bits=(1, 2, 3, 4),
            activation="lqnet",
            paper="LQ-Nets: Learned Quantization for Highly Accurate and Compact Deep "
            "Neural Networks (Zhang et al., 2018)",
        ),
        _rival(
            "dsq",
            "rounding that a tanh-shaped curve with a learned temperature stands in for",
            "dsq:DsqWeight",
            weight_bits=(1, 2, 3, 4, 8),
            activation="dsq",
            paper="Differentiable Soft Quantization: Bridging Full-Precision and "
            "Low-Bit Neural Networks (Gong et al., 2019)",
        ),
        _rival(
            "sq",
            "a sum of sigmoids whose temperature rises until it is a staircase",
            "sq:SqWeight",
            weight_bits=(1, 2, 3, 4, 8),
            activation="sq",
            paper="Quantization Networks (Yang et al., 2019)",
            temperature=True,
        ),
        _rival(
            "lsq",
            "uniform steps whose size is learned",
            "lsq:LsqWeight",
            weight_bits=(1, 2, 3, 4, 8),
            activation="lsq",
            paper="Learned Step Size Quantization (Esser et al., 2020)",
        ),
        _rival(
            "pact",
            "DoReFa's weights, activations clipped at a learned level",
            "dorefa:DoReFaWeight",
            weight_bits=(1, 2, 3, 4, 8),
            activation="pact",
            paper="PACT: Parameterized Clipping Activation for Quantized Neural "
            "Networks (Choi et al., 2018)",
        ),
        _rival(
            "hwgq",
            "BWN's weights, activations on the best levels of a half-wave Gaussian",
            "binary:BwnWeight",
            weight_bits=(1,),
            activation="hwgq",
            paper="Deep Learning with Low Precision by Half-wave Gaussian Quantization "
            "(Cai et al., 2017)",
        ),
        _rival(
            "ttq",
            "three levels, -n, 0 and p, of which n and p are learned",
            "ttq:TtqWeight",
            weight_bits=(2,),
            activation=None,
            paper="Trained Ternary Quantization (Zhu et al., 2017)",
        ),
        _rival(
            "syq",
            "signs or ternary weights with a learned scale for every position of the kernel",
            "syq:SyqWeight",
            weight_bits=(1, 2),
            activation="dorefa",
            paper="SYQ: Learning Symmetric Quantization For Efficient Deep Neural "
            "Networks (Faraone et al., 2018)",
        ),
        _rival(
            "tbn",
            "BWN's weights, activations -1, 0 and 1",
            "binary:BwnWeight",
            weight_bits=(1,),
            activation="ternary",
            paper="TBN: Convolutional Neural Network with Ternary Inputs and Binary "
            "Weights (Wan et al., 2018)",
        ),
        _rival(
            "abcnet",
            "a sum of several binary bases, and of several binary activations",
            "abcnet:AbcNetWeight",
            weight_bits=(1, 2, 3, 4),
            activation="abcnet",
            paper="Towards Accurate Binary Convolutional Neural Network (Lin et al., 2017)",
        ),
        _rival(
            "bireal",
            "signs whose gradient knows the magnitude of the weights",
            "bireal:BiRealWeight",
            weight_bits=(1,),
            activation="sign",
            paper="Bi-Real Net: Enhancing the Performance of 1-bit CNNs With Improved "
            "Representational Capability and Advanced Training Algorithm (Liu et al., 2018)",
        ),
        _rival(
            "irnet",
            "balanced, standardised signs with a shift, gradients that sharpen over training",
            "irnet:IrNetWeight",
            weight_bits=(1,),
            activation="ede_sign",
            paper="Forward and Backward Information Retention for Accurate Binary "
            "Neural Networks (Qin et al., 2020)",
        ),
        _rival(
            "adabin",
            "two levels, learned from each filter's centre and spread, for activations too",
            "adabin:AdaBinWeight",
            weight_bits=(1,),
            activation="adabin",
            paper="AdaBin: Improving Binary Neural Networks with Adaptive Binary Sets "
            "(Tu et al., 2022)",
        ),
    ),
)

# `signed`: the quantiser distinguishes negative inputs, so that a ReLU before it would leave it
# one level; `quantize` removes such a ReLU.
ACTIVATIONS = Registry(
    "activation quantiser",
    (
        Entry(
            "dorefa",
            "DoReFa: clip to [0, 1], then 2**bits equal steps (the paper's choice)",
            "slb_autotune.quant.activations:DoReFa",
            {"activation_bits": (1, 2, 3, 4, 8)},
        ),
        Entry(
            "pact",
            "PACT: as DoReFa, with a learned clipping level for each layer",
            "slb_autotune.quant.activations:Pact",
            {"activation_bits": (1, 2, 3, 4, 8)},
        ),
        Entry(
            "sign",
            "sign with the Bi-Real piecewise-linear gradient, 1 bit only",
            "slb_autotune.quant.activations:BiRealSign",
            {"activation_bits": (1,), "signed": True},
        ),
        Entry(
            "clipped_sign",
            "sign, the gradient passes where |x| <= 1 (BNN), 1 bit only",
            "slb_autotune.quant.rivals.binary:ClippedSign",
            {"activation_bits": (1,), "signed": True},
        ),
        Entry(
            "xnor",
            "sign with a scale for every position of the output (XNOR-Net), 1 bit only",
            "slb_autotune.quant.rivals.binary:XnorSign",
            {"activation_bits": (1,), "signed": True},
        ),
        Entry(
            "lqnet",
            "a learned basis by least quantisation error, non-negative (LQ-Net)",
            "slb_autotune.quant.rivals.lqnet:LqNetActivation",
            {"activation_bits": (1, 2, 3, 4)},
        ),
        Entry(
            "dsq",
            "rounding on a learned range behind a tanh-shaped curve (DSQ)",
            "slb_autotune.quant.rivals.dsq:DsqActivation",
            {"activation_bits": (1, 2, 3, 4, 8)},
        ),
        Entry(
            "sq",
            "a sum of sigmoids with rising temperature (Quantization Networks)",
            "slb_autotune.quant.rivals.sq:SqActivation",
            {"activation_bits": (1, 2, 3, 4, 8)},
        ),
        Entry(
            "lsq",
            "uniform steps of a learned size, non-negative (LSQ)",
            "slb_autotune.quant.rivals.lsq:LsqActivation",
            {"activation_bits": (1, 2, 3, 4, 8)},
        ),
        Entry(
            "hwgq",
            "the best levels of a half-wave Gaussian, 0 and above (HWGQ)",
            "slb_autotune.quant.rivals.hwgq:HwgqActivation",
            {"activation_bits": (1, 2, 3, 4)},
        ),
        Entry(
            "ternary",
            "-1, 0 or 1 by a threshold of 0.4 mean |x|, no scale (TBN), 2 bits only",
            "slb_autotune.quant.rivals.tbn:TernaryActivation",
            {"activation_bits": (2,), "signed": True},
        ),
        Entry(
            "abcnet",
            "a sum of several shifted binary activations (ABC-Net)",
            "slb_autotune.quant.rivals.abcnet:AbcNetActivation",
            {"activation_bits": (1, 2, 3, 4)},
        ),
        Entry(
            "ede_sign",
            "sign with IR-Net's gradient, which sharpens over training, 1 bit only",
            "slb_autotune.quant.rivals.irnet:EdeSign",
            {"activation_bits": (1,), "signed": True},
        ),
        Entry(
            "adabin",
            "two learned levels per layer (AdaBin), 1 bit only",
            "slb_autotune.quant.rivals.adabin:AdaBinActivation",
            {"activation_bits": (1,), "signed": True},
        ),
    ),
)


def activation_name(method: str, activation: str) -> str | None:
    """The activation quantiser that `activation` names; None where a method has none."""
    name = METHODS[method].details["activation"] if activation == "method" else activation
    return None if name is None else ACTIVATIONS[name].name


def activation_widths(method: str, activation: str) -> tuple[int, ...]:
    """The bits that activations can have, beside 32."""
    name = activation_name(method, activation)
    return () if name is None else tuple(ACTIVATIONS[name].details["activation_bits"])
