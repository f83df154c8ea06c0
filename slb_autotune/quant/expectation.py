"""W_c and its gradient, and the codes of W_q, from A: the arithmetic under SLB's layers.

    W_c      = sum_i P_i v_i,  P_i = softmax_i(T A)         (eq:wc, eq_prob)
    dW_c/dA_i = T P_i (v_i - W_c)

No P is kept between the passes: it is made again, block by block, with powers of two, which cost
half of what powers of e do. For 1 bit W_c = tanh(T (A_2 - A_1) / 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# Elements of A handled at once. On a CPU 4 MB of float32: enough for two threads to share, small
# enough to stay in the outer cache. An accelerator would rather see few large kernels.
_CPU_BLOCK = 2**20
_ACCELERATOR_BLOCK = 2**26

# Layers with fewer elements of A are worked on side by side: the start of their kernels would
# cost more than copying A does. The backward pass copies twice, there and back.
_CPU_SMALL = 2**18
_CPU_SMALL_BACK = 2**16
_ACCELERATOR_SMALL = 2**20

# Elements that torch gives a thread of its own on a CPU (at::internal::GRAIN_SIZE).
_GRAIN = 2**15

_LOG2_E = math.log2(math.e)


def value_set(bits: int) -> Tensor:
    """V: 2**bits values, uniform on [-1, 1]."""
    return torch.linspace(-1.0, 1.0, 2**bits, dtype=torch.float64).to(torch.get_default_dtype())


def _on_cpu(A: Tensor) -> bool:
    return A.device.type == "cpu"


def working_dtype(A: Tensor) -> torch.dtype:
    """Half precision cannot hold T times A; it is worked on in float32."""
    return torch.float32 if A.dtype in (torch.float16, torch.bfloat16) else A.dtype


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


def negative_peak(block: Tensor, T: float, dim: int = 0, out: Tensor | None = None) -> Tensor:
    """-max_i A_i, in the units of `powers`."""
    return torch.amax(block.to(working_dtype(block)), dim, out=out).mul_(-T * _LOG2_E)


def powers(block: Tensor, shift: Tensor, T: float, out: Tensor | None = None) -> Tensor:
    """exp(T (A - max A)), from shift = `negative_peak`: a softmax before its division.

    One multiply-add: what rounding does to the shift is the same for all i, and the division
    cancels it.
    """
    return torch.add(shift, block, alpha=T * _LOG2_E, out=out).exp2_()


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
        flats = [A.reshape(A.shape[0], -1) for A in logits]
        W, *sums = make(flats, values, T)
        ctx.T = T
        ctx.save_for_backward(values, W, *logits, *sums)
        pieces = zip(W.split(_widths(flats)), logits, strict=True)
        return tuple(piece.view(A.shape[1:]) for piece, A in pieces)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, W, *rest = ctx.saved_tensors
        logits, sums = rest[: len(grads)], rest[len(grads) :]
        flats = [A.reshape(A.shape[0], -1) for A in logits]
        g = torch.empty_like(W)
        for piece, grad in zip(g.split(_widths(flats)), grads, strict=True):
            piece.view(grad.shape).copy_(grad)
        if len(values) == 2:
            made = _binary_expectation_grad(flats, values, ctx.T, W, g)
        else:
            made = _expectation_grad(flats, values, ctx.T, (W, *sums), g)
        pieces = zip(made, logits, strict=True)
        return None, None, *(grad.reshape(A.shape) for grad, A in pieces)


def _binary_expectation(flats: Sequence[Tensor], values: Tensor, T: float) -> tuple[Tensor]:
    """W_c = tanh(T (A_2 - A_1) / 2)."""
    widths = _widths(flats)
    W = flats[0].new_empty(sum(widths))
    for (low, high), w in zip(flats, W.split(widths), strict=True):
        torch.sub(high, low, out=w)
    return (W.mul_(T / 2).tanh_(),)


def _binary_expectation_grad(
    flats: Sequence[Tensor], values: Tensor, T: float, W: Tensor, g: Tensor
) -> list[Tensor]:
    """-+T / 2 (1 - W_c^2) g."""
    slope = torch.ops.aten.tanh_backward(g, W)
    sides = (values * (T / 2)).to(slope.dtype).view(2, 1)
    return [torch.mul(piece, sides) for piece in slope.split(_widths(flats))]


def _expectation(
    flats: Sequence[Tensor], values: Tensor, T: float
) -> tuple[Tensor, Tensor, Tensor]:
    """W_c, with -max_i A_i and sum_i exp(T (A_i - max A))."""
    dtype = working_dtype(flats[0])
    v = values.to(dtype)
    ones = torch.ones_like(v)
    W, shift, total = torch.empty((3, sum(_widths(flats))), dtype=dtype, device=v.device)
    for _, flat, *columns in _stretches(flats, _CPU_SMALL, W, shift, total):
        for block, *parts in column_blocks(flat, *columns):
            shares, w, peak, mass = _shared(block, *parts)
            negative_peak(shares, T, 1, out=peak)
            E = torch.empty(shares.shape, dtype=dtype, device=v.device)
            powers(shares, peak.unsqueeze(1), T, out=E)
            _weighted_sum(E, ones, mass)
            _weighted_sum(E, v, w)
    return W.div_(total).to(flats[0].dtype), shift, total


def _expectation_grad(
    flats: Sequence[Tensor], values: Tensor, T: float, kept: Sequence[Tensor], g: Tensor
) -> list[Tensor]:
    """T P_i (v_i - W_c) g, with P made again from A and what the forward pass kept."""
    W, shift, total = kept
    v = values.to(shift.dtype).view(-1, 1)
    pull = torch.div(g, total).mul_(T / 2)
    grads: list[Tensor] = []
    for layers, flat, *columns in _stretches(
        flats, _CPU_SMALL_BACK, W.to(shift.dtype), shift, pull
    ):
        grad = torch.empty_like(flat, dtype=shift.dtype)
        for block, E, w, peak, half in column_blocks(flat, grad, *columns):
            powers(block, peak, T, out=E).mul_(half)
            _times_twice_difference(E, v, w)
        grads += grad.to(flat.dtype).split(_widths(layers), 1)
    return grads


def _times_twice_difference(E: Tensor, v: Tensor, w: Tensor) -> None:
    """2 (v_i - w) E_i, in place."""
    if _on_cpu(E):
        # The gradient of a squared error: one kernel, and no difference is written down.
        torch.ops.aten.mse_loss_backward(E, v, w, 0, grad_input=E)
    else:
        E.mul_(2 * (v - w))


def _shared(block: Tensor, *others: Tensor) -> Iterator[Tensor]:
    """The (m, n) block as (k, m, n / k), and others as (k, n / k): a share for each thread.

    Torch gives every thread as many consecutive elements of a result. In shares of whole columns
    a thread finds what it wrote itself in its own cache, also where it adds up over rows.
    """
    rows, columns = block.shape
    k = min(torch.get_num_threads(), block.numel() // _GRAIN) if _on_cpu(block) else 1
    k = next((k for k in range(k, 1, -1) if columns % k == 0), 1)
    yield block.view(rows, k, columns // k).transpose(0, 1)
    for other in others:
        yield other.view(k, -1)


def _weighted_sum(E: Tensor, weights: Tensor, out: Tensor) -> None:
    """sum_i weights_i E_i for every column."""
    shares = E.shape[0]
    if shares == 1:
        # Not a matrix product, for which a GPU may be set to round its factors.
        torch.mv(E[0].t(), weights, out=out[0])
    else:
        torch.bmm(weights.expand(shares, 1, -1), E, out=out.unsqueeze(1))


def _widths(flats: Sequence[Tensor]) -> list[int]:
    """How many weights each A is for."""
    return [flat.shape[1] for flat in flats]


def _stretches(
    flats: Sequence[Tensor], cpu_small: int, *others: Tensor
) -> Iterator[tuple[Any, ...]]:
    """What to work on at once: some A, the same as one (m, n) matrix, their part of `others`."""
    stretches = _neighbours(flats, cpu_small if _on_cpu(flats[0]) else _ACCELERATOR_SMALL)
    widths = [sum(_widths(layers)) for layers in stretches]
    parts = zip(*(other.split(widths) for other in others), strict=True)
    for layers, columns in zip(stretches, parts, strict=True):
        yield layers, _joined(layers, 1), *columns


def _neighbours(flats: Sequence[Tensor], small: int) -> list[list[Tensor]]:
    """A large A alone, small ones with the small ones beside them."""
    found: list[list[Tensor]] = []
    for A in flats:
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
