"""Weights and activations of "LQ-Nets: Learned Quantization for Highly Accurate and Compact Deep
Neural Networks" (Zhang et al., 2018).

The levels are sums of a basis v_1, ..., v_bits: v c for every row c of coefficients, -1 or 1 for
weights, 0 or 1 for activations. x is rounded to the nearest level, which gives the coefficients B
of all x, and the basis follows x: in each training step it becomes 0.9 v + 0.1 v*, where v*
minimises ||B v* - x||^2 (the paper's QEM with T = 1; no gradient goes to v).

Where levels are unused B^T B may be singular. So v* minimises ||B v* - x||^2 / n
+ 1e-4 ||v* - v||^2, with n the number of x, which keeps what x does not determine. The authors'
code does so for weights, without the 1/n: in float32 the term would be lost there.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import WeightQuantizer, straight_through

_KEEP = 0.9  # share of the old basis in the moving average
_PULL = 1e-4  # weight of ||v* - v||^2
_QUARTILE = 0.6745  # of the normal distribution; the authors' first basis has it


class LqNetWeight(WeightQuantizer):
    """One basis for every filter: W_q = v . c, c in {-1, 1}^bits, is nearest to W; dW_q/dW = 1.

    The basis is updated before W is rounded with it, so that W_q is what the codes and the stored
    basis say; the authors' code updates it afterwards. It starts at v_i = 0.6745 s 2**(i - bits),
    i = 1, ..., bits, as theirs, where s is the root mean square of the filter, and not the
    standard deviation that its initialisation had. Bit i - 1 of a code is 1 where v_i is added.
    """

    basis: Tensor

    def __init__(self, bits: int, weight_shape: torch.Size) -> None:
        super().__init__(bits, weight_shape)
        self.register_buffer("basis", torch.zeros(weight_shape[0], bits))

    def start(self, weight: Tensor) -> None:
        """The first basis."""
        spread = weight.flatten(1).square().mean(1, keepdim=True).sqrt()
        self.basis = _QUARTILE * spread * 2 ** (_powers(self.bits, spread) - self.bits + 1)

    def forward(self, weight: Tensor) -> Tensor:
        """The low-bit weight; in training the basis moves first."""
        fixed = weight.detach()
        if self.training:
            places, order = self._nearest(fixed)
            _move(self.basis, fixed, places, _coefficients(self.bits, -1, fixed)[order])
        return straight_through(weight, self.decode(self.codes(fixed), self.stored(fixed)))

    def codes(self, weight: Tensor) -> Tensor:
        """The bits of the nearest level."""
        places, order = self._nearest(weight)
        codes = order.to(torch.uint8).gather(1, places.flatten(1).long())
        return codes.view(weight.shape)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """The basis of every filter."""
        return {"basis": self.basis.clone()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """v . c."""
        basis = stored["basis"]
        levels = _levels(basis, _coefficients(self.bits, -1, basis))
        return levels.gather(1, codes.flatten(1).long()).view(codes.shape)

    def _nearest(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The places of the nearest levels, and the codes of the places."""
        levels, order = _levels(self.basis, _coefficients(self.bits, -1, weight)).sort()
        return _places(weight, levels), order


class LqNetActivation(nn.Module):
    """One basis for the layer: y = v . c, c in {0, 1}^bits, is nearest to max(x, 0).

    dy/dx = 1 for 0 <= x <= the largest level, 0 outside; the paper has a ReLU before. The basis
    moves after x is rounded with it. It starts at v_i = 1.349 * 2**(i - 1) / (2**bits - 1),
    i = 1, ..., bits, which suits inputs of unit variance. Order and start are as in the authors'
    code.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        first = 2 * _QUARTILE / (2**bits - 1) * 2 ** _powers(bits, torch.zeros(()))
        self.basis = nn.Parameter(first, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`; in training the basis follows it."""
        positive = x.detach().clamp_min(0)
        basis = self.basis.detach().unsqueeze(0)
        coefficients = _coefficients(self.bits, 0, basis)
        levels, order = _levels(basis, coefficients).sort()
        places = _places(positive, levels)
        y = levels[0][places.long()]
        if self.training:
            _move(basis, positive, places, coefficients[order])
        return cast(Tensor, _Clipped.apply(x, y, levels[0, -1]))  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """Show the bits."""
        return f"bits={self.bits}"


class _Clipped(Function):
    """`rounded` forward; backward, the gradient passes where 0 <= x <= top."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor, top: Tensor) -> Tensor:
        ctx.save_for_backward(x, top)
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, top = ctx.saved_tensors
        return grads[0] * ((x >= 0) & (x <= top)), None, None


# A basis is a matrix of one row per filter, or one row for all of an activation. Its levels are
# in the order of their codes; places are their order from the smallest to the largest. No
# matrix product is used: autocast would take it in half precision.


def _powers(bits: int, like: Tensor) -> Tensor:
    """0, ..., bits - 1."""
    return torch.arange(bits, dtype=like.dtype, device=like.device)


def _coefficients(bits: int, low: int, like: Tensor) -> Tensor:
    """A row for every code: 1 where its bit is 1, `low` where it is 0."""
    codes = torch.arange(2**bits, device=like.device).unsqueeze(1)
    ones = codes.bitwise_right_shift(torch.arange(bits, device=like.device)).bitwise_and_(1)
    return (low + (1 - low) * ones).to(like.dtype)


def _levels(basis: Tensor, coefficients: Tensor) -> Tensor:
    """The levels of every row."""
    return (basis.unsqueeze(1) * coefficients).sum(2)


def _places(x: Tensor, levels: Tensor) -> Tensor:
    """The place of the level that is nearest to each x, as uint8; half-way is the lower one."""
    edges = (levels[:, 1:] + levels[:, :-1]) / 2
    places = torch.zeros_like(x, dtype=torch.uint8)
    for edge in edges.unbind(1):
        places += x > edge.view(-1, *[1] * (x.dim() - 1))
    return places


def _move(basis: Tensor, x: Tensor, places: Tensor, B: Tensor) -> None:
    """A step of the moving average, in place; B has the coefficients of every place."""
    places = places.reshape(len(basis), -1)
    x = x.reshape(len(basis), -1).to(basis.dtype)
    counts, sums = [], []
    for place in range(B.shape[1]):
        here = (places == place).to(x.dtype)
        counts.append(here.sum(1))
        sums.append(here.mul_(x).sum(1))
    share = torch.stack(counts, 1) / x.shape[1]
    mean = torch.stack(sums, 1) / x.shape[1]
    gram = (share[..., None, None] * B.unsqueeze(3) * B.unsqueeze(2)).sum(1)
    gram += _PULL * torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
    target = (mean.unsqueeze(2) * B).sum(1) + _PULL * basis
    # The matrices are positive definite; checking that would wait for the device. There is no
    # solver in half precision.
    dtype = torch.promote_types(basis.dtype, torch.float32)
    best, _ = torch.linalg.solve_ex(gram.to(dtype), target.to(dtype).unsqueeze(2))
    basis.lerp_(best.squeeze(2).to(basis.dtype), 1 - _KEEP)
