"""What the rivals share: a float weight is trained, and a quantiser rounds it in every pass."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Convolution, LowBitLayer, Matrix, Stored
from slb_autotune.quant.states import Annealed


class WeightQuantizer(Annealed):
    """How a method turns the float weight W into a low-bit one.

    A method defines four things: `forward` (the weight of training, with its gradient), `codes`
    (the weight of inference as indices below 2**bits), `stored` (the float numbers that
    inference needs beside the codes; all of them count in `size_bytes`) and `decode` (both
    together are the weight of inference). `decode` may use nothing but its arguments, `bits` and
    `weight_shape`: a packed network has nothing else. `start` sets learned numbers by the first
    weights. Shapes alone (the meta device) must go through all of them.
    """

    soft: bool = False  # whether `forward` differs from the weight of inference

    def __init__(self, bits: int, weight_shape: torch.Size) -> None:
        super().__init__()
        self.bits = bits
        self.weight_shape = weight_shape

    def start(self, weight: Tensor) -> None:
        """Set what is learned beside the weight by the weight's first values."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight of training."""
        raise NotImplementedError

    def codes(self, weight: Tensor) -> Tensor:
        """The index of each low-bit weight, as uint8."""
        raise NotImplementedError

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """The float numbers of inference by name; none unless the method has some."""
        return {}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """The weight of inference."""
        raise NotImplementedError

    @classmethod
    def from_float(cls, layer: nn.Conv2d | nn.Linear, bits: int, **_: object) -> RoundedLayer:
        """The low-bit form of a float layer; training starts from its weights."""
        new: RoundedLayer
        if isinstance(layer, nn.Conv2d):
            new = RoundedConv2d(layer, cls(bits, layer.weight.shape))
        else:
            new = RoundedLinear(layer, cls(bits, layer.weight.shape))
        return new.to(device=layer.weight.device, dtype=layer.weight.dtype)


class RoundedLayer(LowBitLayer):
    """A layer whose float `weight` is rounded by its `quantizer` in every forward pass."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, quantizer: WeightQuantizer) -> None:
        super().__init__(layer.weight.shape, quantizer.bits, layer.bias is not None)
        self.quantizer = quantizer
        self.weight = nn.Parameter(layer.weight.detach().clone())
        with torch.no_grad():
            quantizer.start(self.weight)
            if self.bias is not None and layer.bias is not None:
                self.bias.copy_(layer.bias)

    @property
    def soft(self) -> bool:  # type: ignore[override]
        """Whether the weight, or its activation quantiser, differs between the states."""
        return self.quantizer.soft or getattr(self.activation, "soft", False)

    @property
    def trained(self) -> nn.Parameter:
        """The float weight."""
        return self.weight

    def continuous_weight(self) -> Tensor:
        """The weight of training, differentiable."""
        return cast(Tensor, self.quantizer(self.weight))

    @torch.no_grad()
    def quantized_weight(self) -> Tensor:
        """The weight of inference."""
        return self.decode(self.codes(), self.stored()).to(self.weight.dtype)

    @torch.no_grad()
    def codes(self) -> Tensor:
        """The weight of inference as indices, uint8.

        The float weight may be channels-last; the codes never are, as in a packed network, since
        a convolution's last bit depends on the layout.
        """
        return self.quantizer.codes(self.weight).contiguous()

    @torch.no_grad()
    def stored(self) -> dict[str, Tensor]:
        """The float numbers of inference."""
        return self.quantizer.stored(self.weight)

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """The weight of inference, from what a packed file holds."""
        return self.quantizer.decode(codes, stored)


class RoundedConv2d(Convolution, RoundedLayer):
    """A convolution with a rounded weight."""

    def __init__(self, layer: nn.Conv2d, quantizer: WeightQuantizer) -> None:
        super().__init__(layer, quantizer)
        self.geometry_of(layer)


class RoundedLinear(Matrix, RoundedLayer):
    """A linear layer with a rounded weight."""


class FirstBatch(nn.Module):
    """An activation quantiser that the first batch of training sets.

    The buffer `started` records whether that is done, also for a resumed run. Reading it would
    wait for the device, so the flag `_settled` saves later batches from it.
    """

    started: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.register_buffer("started", torch.tensor(False))
        self._settled = False
        self.register_load_state_dict_post_hook(_unsettle)  # type: ignore[no-untyped-call]

    def first_values(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters that the first batch sets, by name."""
        raise NotImplementedError

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Set the parameters by `x`, if it is the first batch of training."""
        if self._settled or not self.training:
            return
        dtype = next(self.parameters()).dtype  # half precision is too coarse for sums
        for name, value in self.first_values(x.to(dtype)).items():
            parameter = self.get_parameter(name)
            parameter.copy_(torch.where(self.started, parameter, value))
        self.started.fill_(True)
        self._settled = True

    def extra_repr(self) -> str:
        """Show the bits."""
        return f"bits={self.bits}"


def _unsettle(quantiser: nn.Module, _: object) -> None:
    """After loading, `started` is to be read again."""
    quantiser._settled = False  # type: ignore[assignment]


class _PassThrough(Function):
    """`rounded` forward; backward, the gradient goes to `x` as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """The straight-through estimator: the value of `rounded`, the gradient of `x`."""
    return cast(Tensor, _PassThrough.apply(x, rounded.detach()))  # type: ignore[no-untyped-call]


class _ClippedSign(Function):
    """sign(x) in {-1, 1}; d/dx = 1 for |x| <= 1, 0 outside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() <= 1)


def clipped_sign(x: Tensor) -> Tensor:
    """sign(x) with the straight-through gradient where |x| <= 1."""
    return cast(Tensor, _ClippedSign.apply(x))  # type: ignore[no-untyped-call]


def sign(x: Tensor) -> Tensor:
    """-1 or 1; a zero is 1."""
    return signs(x >= 0, x)


def sign_codes(x: Tensor) -> Tensor:
    """0 for -1, 1 for 1."""
    return (x >= 0).to(torch.uint8)


def signs(codes: Tensor, like: Tensor | None = None) -> Tensor:
    """-1 or 1 for a code, in the precision of `like`."""
    dtype = torch.get_default_dtype() if like is None else like.dtype
    return codes.to(dtype).mul_(2).sub_(1)


def filter_shape(weight: Tensor) -> tuple[int, ...]:
    """The shape of one number an output channel, beside the weight."""
    return (weight.shape[0], *[1] * (weight.dim() - 1))
