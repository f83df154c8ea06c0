"""Searching for low-bit weights: A, P, W_c and W_q (paper, section 3.2).

    V   = 2**q values, uniform on [-1, 1]
    P_i = softmax_i(T A)                         (eq_prob; T = 1/tau)
    W_c = sum_i P_i v_i                          (eq:wc), used in training
    W_q = v_k, k = argmax_i P_i                  (eq:wq), used at inference

The gradient is dW_c/dA_i = T P_i (v_i - W_c), so no P is kept between the passes: it is made
again, block by block, with powers of two, which cost half of what powers of e do.
For 1 bit W_c = tanh(T (A_2 - A_1) / 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from slb_autotune.errors import ConfigError
from slb_autotune.quant.layers import Convolution, LowBitLayer, Matrix, Stored, check_bits
from slb_autotune.quant.states import Annealed

# Elements of A handled at once. On a CPU 4 MB of float32: enough for two threads to share, small
# enough to stay in the outer cache. An accelerator would rather see few large kernels.
_CPU_BLOCK = 2**20
_ACCELERATOR_BLOCK = 2**26

# Layers with fewer elements of A are worked on side by side: the start of their kernels would
# cost more than copying A does.
_CPU_SMALL = 2**16
_ACCELERATOR_SMALL = 2**20

_LOG2_E = math.log2(math.e)

# Fused optimisers change parameters without raising their version, so steps are counted: a cached
# W_q holds until the next step of any optimiser.
_steps = 0


def _count_step(*_: object) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count_step)


def value_set(bits: int) -> Tensor:
    """V: 2**bits values, uniform on [-1, 1]."""
    return torch.linspace(-1.0, 1.0, 2**bits, dtype=torch.float64).to(torch.get_default_dtype())


def _on_cpu(A: Tensor) -> bool:
    return A.device.type == "cpu"


def column_blocks(flat: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """A as an (m, n) matrix, and others as wide, in blocks of columns of a handy size."""
    rows, columns = flat.shape
    block = _CPU_BLOCK if _on_cpu(flat) else _ACCELERATOR_BLOCK
    # Shapes alone (the meta device) have no need of blocks, and may be of any size.
    if rows * columns <= block or flat.is_meta:
        yield flat, *others
        return
    width = max(1, block // rows)
    for start in range(0, columns, width):
        yield tuple(tensor[..., start : start + width] for tensor in (flat, *others))


def shifted_powers(block: Tensor, top: Tensor, T: float, out: Tensor | None = None) -> Tensor:
    """exp(T (A - top)): with top = max A, a softmax before it is divided by its sum."""
    return torch.sub(block, top, out=out).mul_(T * _LOG2_E).exp2_()


def working_dtype(A: Tensor) -> torch.dtype:
    """Half precision cannot hold T times A; it is worked on in float32."""
    return torch.float32 if A.dtype in (torch.float16, torch.bfloat16) else A.dtype


class _ExpectedWeights(Function):
    """W_c of every A, all with as many values, with the exact gradient of eq:wc.

    One call serves all layers: what can be done for all weights at once is, and the rest goes back
    to back, so that what is written in between stays in the cache. Beside A and W_c it keeps the
    largest entry and the sum of each softmax, two numbers a weight, so that the backward pass need
    not look for them again.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, T: float, *logits: Tensor) -> tuple[Tensor, ...]:
        make = _binary_expectation if len(values) == 2 else _expectation
        W, *sums = make(logits, values, T)
        ctx.T = T
        ctx.save_for_backward(values, W, *logits, *sums)
        pieces = zip(W.split(_widths(logits)), logits, strict=True)
        return tuple(piece.view(A.shape[1:]) for piece, A in pieces)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, W, *rest = ctx.saved_tensors
        logits, sums = rest[: len(grads)], rest[len(grads) :]
        g = _joined([grad.reshape(-1) for grad in grads])
        if len(values) == 2:
            return None, None, *_binary_expectation_grad(logits, values, ctx.T, W, g)
        return None, None, *_expectation_grad(logits, values, ctx.T, (W, *sums), g)


def _binary_expectation(logits: Sequence[Tensor], values: Tensor, T: float) -> tuple[Tensor]:
    """W_c = tanh(T (A_2 - A_1) / 2)."""
    widths = _widths(logits)
    W = logits[0].new_empty(sum(widths))
    for A, w in zip(logits, W.split(widths), strict=True):
        low, high = A.reshape(2, -1)
        torch.sub(high, low, out=w)
    return (W.mul_(T / 2).tanh_(),)


def _binary_expectation_grad(
    logits: Sequence[Tensor], values: Tensor, T: float, W: Tensor, g: Tensor
) -> list[Tensor]:
    """-+T / 2 (1 - W_c^2) g."""
    slope = torch.ops.aten.tanh_backward(g, W)
    sides = (values * (T / 2)).to(slope.dtype).view(2, 1)
    pieces = zip(slope.split(_widths(logits)), logits, strict=True)
    return [torch.mul(piece, sides).view(A.shape) for piece, A in pieces]


def _expectation(
    logits: Sequence[Tensor], values: Tensor, T: float
) -> tuple[Tensor, Tensor, Tensor]:
    """W_c, with max_i A_i and sum_i exp(T (A_i - max A))."""
    dtype = working_dtype(logits[0])
    v = values.to(dtype)
    W, top, total = torch.empty((3, sum(_widths(logits))), dtype=dtype, device=v.device)
    for _, flat, *parts in _stretches(logits, W, top, total):
        for block, w, peak, mass in column_blocks(flat, *parts):
            torch.amax(block.to(dtype), 0, out=peak)
            E = shifted_powers(block, peak, T)
            torch.sum(E, 0, out=mass)
            torch.mv(E.t(), v, out=w)
    return W.div_(total).to(logits[0].dtype), top, total


def _expectation_grad(
    logits: Sequence[Tensor], values: Tensor, T: float, kept: Sequence[Tensor], g: Tensor
) -> list[Tensor]:
    """T P_i (v_i - W_c) g, with P made again from A and what the forward pass kept."""
    W, top, total = kept
    v = values.to(top.dtype).view(-1, 1)
    minus_pull = torch.div(g, total).mul_(-T)
    shift = torch.mul(W, minus_pull)
    grads: list[Tensor] = []
    for layers, flat, *parts in _stretches(logits, top, shift, minus_pull):
        grad = torch.empty_like(flat, dtype=top.dtype)
        for block, E, peak, offset, pull in column_blocks(flat, grad, *parts):
            shifted_powers(block, peak, T, out=E)
            E.mul_(torch.addcmul(offset, v, pull, value=-1))
        pieces = zip(grad.to(flat.dtype).split(_widths(layers), 1), layers, strict=True)
        grads += [piece.reshape(A.shape) for piece, A in pieces]
    return grads


def _widths(logits: Sequence[Tensor]) -> list[int]:
    """How many weights each A is for."""
    return [A.numel() // A.shape[0] for A in logits]


def _stretches(logits: Sequence[Tensor], *others: Tensor) -> Iterator[tuple[Any, ...]]:
    """What to work on at once: some A, the same as one (m, n) matrix, their part of `others`."""
    stretches = _neighbours(logits)
    widths = [sum(_widths(layers)) for layers in stretches]
    parts = zip(*(other.split(widths) for other in others), strict=True)
    for layers, columns in zip(stretches, parts, strict=True):
        yield layers, _joined([A.reshape(A.shape[0], -1) for A in layers], 1), *columns


def _neighbours(logits: Sequence[Tensor]) -> list[list[Tensor]]:
    """A large A alone, small ones with the small ones beside them."""
    small = _CPU_SMALL if _on_cpu(logits[0]) else _ACCELERATOR_SMALL
    found: list[list[Tensor]] = []
    for A in logits:
        if found and max(A.numel(), found[-1][0].numel()) < small:
            found[-1].append(A)
        else:
            found.append([A])
    return found


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def expected_weights(logits: Sequence[Tensor], values: Tensor, T: float) -> tuple[Tensor, ...]:
    """W_c = sum_i softmax_i(T A) v_i over the first dimension of every A, in A's precision."""
    device = logits[0].device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return _ExpectedWeights.apply(values, T, *logits)  # type: ignore[no-untyped-call]
    return _ExpectedWeights.apply(values, T, *logits)  # type: ignore[no-untyped-call]


def expected_weight(A: Tensor, values: Tensor, T: float) -> Tensor:
    """W_c of one A."""
    return expected_weights([A], values, T)[0]


def argmax_codes(A: Tensor) -> Tensor:
    """k = argmax_i A_i as uint8; a tie takes the first."""
    if A.shape[0] == 2:
        return (A[1] > A[0]).to(torch.uint8)
    flat = A.detach().reshape(A.shape[0], -1)
    m = flat.shape[0]
    from_the_end = torch.arange(m - 1, -1, -1, dtype=torch.uint8, device=A.device).view(-1, 1)
    codes = torch.empty(flat.shape[1], dtype=torch.uint8, device=A.device)
    for block, part in column_blocks(flat, codes):
        part.copy_((m - 1) - torch.where(block == block.amax(0), from_the_end, 0).amax(0))
    return codes.view(A.shape[1:])


def kaiming_logits(shape: Sequence[int], fan_in: int, spread: float | None = None) -> Tensor:
    """A drawn kaiming-normal for each of its m slices: std = sqrt(2 / fan_in).

    `kaiming_normal_` on the whole tensor would take the fan of the wrong dimensions and make A
    (and with it T_e) several times too small.
    """
    std = math.sqrt(2.0 / fan_in) if spread is None else spread
    return torch.randn(tuple(shape)) * std


def logits_from_weight(weight: Tensor, bits: int, spread: float) -> Tensor:
    """A whose argmax is the value nearest to the scaled weight, with standard deviation `spread`.

    A_i falls with the squared distance between v_i and weight / s, where s is the scale that
    brings the values nearest to the weights.
    """
    weight = weight.detach().double()
    values = value_set(bits).to(weight)
    scaled = weight / _best_scale(weight, values)
    # Not centred: near its maximum A is near 0, where floats are dense and no tie is made.
    A = (scaled.unsqueeze(0) - values.view(-1, *[1] * weight.dim())).square().neg_()
    return A * (spread / A.std().clamp_min(1e-12))


def _best_scale(weight: Tensor, values: Tensor) -> Tensor:
    """The scale s with the least squared error of s Q(weight / s), from 80 candidates."""
    largest = weight.abs().max()
    if float(largest) == 0.0:
        return torch.ones((), dtype=weight.dtype, device=weight.device)
    step = 2.0 / (len(values) - 1)
    candidates = [largest * k / 80 for k in range(1, 81)]

    def error(scale: Tensor) -> float:
        rounded = ((weight / scale + 1) / step).round_().clamp_(0, len(values) - 1) * step - 1
        return float((rounded * scale - weight).square_().mean())

    return min(candidates, key=error)


@dataclass(frozen=True)
class _Made:
    """A weight, and what A was when it was made; holding A keeps its address from being reused."""

    key: tuple[object, ...]
    A: Tensor
    weight: Tensor


class SLBLayer(LowBitLayer, Annealed):
    """What SLBConv2d and SLBLinear share: A for a weight of any shape.

    `logits` is A, `values` V, `temperature` T. W_q is cached in eval mode; the cache is tied to
    A's storage and version and to the optimisers' steps, so every change of A is seen, save one
    written in place through `.data`.
    """

    values: Tensor
    soft = True

    def __init__(
        self, weight_shape: tuple[int, ...], bits: int, bias: bool, spread: float | None = None
    ) -> None:
        check_bits("slb", bits)
        super().__init__(weight_shape, bits, bias)
        fan_in = math.prod(weight_shape[1:])
        self.logits = nn.Parameter(kaiming_logits((2**bits, *weight_shape), fan_in, spread))
        self.register_buffer("values", value_set(bits), persistent=False)
        self._cache: _Made | None = None
        self._prepared: _Made | None = None

    def continuous_weight(self) -> Tensor:
        """W_c, differentiable in A; the one that `prepare_weights` made serves once."""
        made, self._prepared = self._prepared, None
        if made is not None and made.key == (self._key(), self.temperature):
            return made.weight
        return expected_weight(self.logits, self.values, self.temperature)

    def prepare(self, weight: Tensor) -> None:
        """Take W_c, made elsewhere, for the next forward pass."""
        self._prepared = _Made((self._key(), self.temperature), self.logits.detach(), weight)

    def _key(self) -> tuple[object, ...]:
        """What A is now."""
        A = self.logits
        return A.data_ptr(), A._version, A.dtype, A.device, _steps

    def codes(self) -> Tensor:
        """The index of W_q in V, as uint8."""
        return argmax_codes(self.logits.detach())

    def quantized_weight(self) -> Tensor:
        """W_q: for every position the value of the largest probability."""
        if self.training or self.logits.is_inference():
            return self._make_quantized_weight()
        key = self._key()
        if self._cache is None or self._cache.key != key:
            self._cache = _Made(key, self.logits.detach(), self._make_quantized_weight())
        return self._cache.weight

    def _make_quantized_weight(self) -> Tensor:
        return self.decode(self.codes(), {}).to(self.logits.dtype)

    def stored(self) -> dict[str, Tensor]:
        """Nothing: V is known from the bits, and there is no scale factor."""
        return {}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """v_k for every code k."""
        dtype = torch.get_default_dtype()
        if self.bits == 1:
            return codes.to(dtype).mul_(2).sub_(1)
        return value_set(self.bits).to(codes.device)[codes.int()]

    @property
    def trained(self) -> nn.Parameter:
        """A."""
        return self.logits

    def train(self, mode: bool = True) -> SLBLayer:
        """Set the mode; what was made before does not outlive it."""
        self._cache = self._prepared = None
        super().train(mode)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None, "_prepared": None}


def prepare_weights(network: nn.Module) -> None:
    """Make W_c of all SLB layers at once, for the forward pass of a training step that follows.

    A step is right without it. With it a network of many small layers is a few percent faster on
    a CPU, and on a GPU it starts fewer kernels.
    """
    if not torch.is_grad_enabled():
        return
    kinds: dict[tuple[object, ...], list[SLBLayer]] = {}
    for layer in network.modules():
        if isinstance(layer, SLBLayer) and layer.training and layer.logits.requires_grad:
            A = layer.logits
            kind = (layer.bits, layer.temperature, A.dtype, A.device)
            kinds.setdefault(kind, []).append(layer)
    for layers in kinds.values():
        first = layers[0]
        logits = [layer.logits for layer in layers]
        made = expected_weights(logits, first.values, first.temperature)
        for layer, weight in zip(layers, made, strict=True):
            layer.prepare(weight)


class SLBConv2d(Convolution, SLBLayer):
    """A 2-D convolution whose weights are searched among 2**bits values."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        groups: int = 1,
        bits: int = 1,
        *,
        dilation: int | tuple[int, int] = 1,
        bias: bool = False,
        spread: float | None = None,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise ConfigError(
                f"groups must divide the channels; got {in_channels}, {out_channels} and {groups}"
            )
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        super().__init__((out_channels, in_channels // groups, *kernel), bits, bias, spread)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.set_geometry(kernel, stride, padding, dilation, groups)


class SLBLinear(Matrix, SLBLayer):
    """A linear layer whose weights are searched among 2**bits values."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bits: int = 1,
        *,
        bias: bool = True,
        spread: float | None = None,
    ) -> None:
        super().__init__((out_features, in_features), bits, bias, spread)
        self.in_features, self.out_features = in_features, out_features


def from_float(
    layer: nn.Conv2d | nn.Linear, bits: int, *, keep_weights: bool, spread: float | None
) -> SLBLayer:
    """The SLB form of a float layer; A starts around its weights where `keep_weights` says so."""
    new: SLBLayer
    bias = layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        new = SLBConv2d(
            layer.in_channels,
            layer.out_channels,
            cast(tuple[int, int], layer.kernel_size),
            cast(tuple[int, int], layer.stride),
            cast("tuple[int, int] | str", layer.padding),
            layer.groups,
            bits,
            dilation=cast(tuple[int, int], layer.dilation),
            bias=bias,
            spread=spread,
        )
    else:
        new = SLBLinear(layer.in_features, layer.out_features, bits, bias=bias, spread=spread)
    with torch.no_grad():
        if keep_weights:
            std = math.sqrt(2.0 / layer.weight[0].numel()) if spread is None else spread
            new.logits.copy_(logits_from_weight(layer.weight, bits, std))
        if new.bias is not None and layer.bias is not None:
            new.bias.copy_(layer.bias)
    return new.to(device=layer.weight.device, dtype=layer.weight.dtype)
