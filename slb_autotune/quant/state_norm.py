"""State batch normalisation (SBN): one affine pair, two sets of statistics (paper, section 3.3).

    y_c = x (*) W_c,  z_c = gamma (y_c - mu_c) / sigma_c + beta      in training
    y_q = x (*) W_q,  z_q = gamma (y_q - mu_q) / sigma_q + beta      at inference

The mode determines where mu_q and sigma_q come from:

- `paper`: y_q is computed beside y_c on the same x, in every step or, where the training loop
  calls `set_step`, in every k-th.
- `calibrate`: after each epoch, forward passes with W_q estimate them from scratch. The authors
  turned to this after review, since it costs far less.
- `off`: nowhere; mu_c and sigma_c are used at inference too (the paper's ablation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slb_autotune.errors import ConfigError
from slb_autotune.quant.states import State, TwoState, network_state

Mode = Literal["paper", "calibrate", "off"]
_MODES = ("paper", "calibrate", "off")
Batch = Tensor | Sequence[Tensor]


class StateBatchNorm2d(TwoState):
    """Batch normalisation with statistics of the continuous and of the discrete state."""

    running_mean_c: Tensor
    running_var_c: Tensor
    running_mean_q: Tensor
    running_var_q: Tensor

    def __init__(
        self,
        num_features: int,
        mode: Mode = "calibrate",
        *,
        every: int = 1,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        if mode not in _MODES:
            raise ConfigError(f"mode of a state BN must be one of {_MODES}; got {mode!r}")
        if every < 1:
            raise ConfigError(f"every must be at least 1; got {every}")
        self.num_features, self.mode, self.every = num_features, mode, every
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        for state in "cq":
            self.register_buffer(f"running_mean_{state}", torch.zeros(num_features))
            self.register_buffer(f"running_var_{state}", torch.ones(num_features))
        self.observing = True
        self._sums: _Average | None = None

    @classmethod
    def from_batch_norm(cls, norm: nn.BatchNorm2d, mode: Mode, every: int = 1) -> StateBatchNorm2d:
        """The same affine pair and, in both sets, the same statistics."""
        momentum = 0.1 if norm.momentum is None else norm.momentum
        new = cls(norm.num_features, mode, every=every, eps=norm.eps, momentum=momentum)
        with torch.no_grad():
            for mean, var in (new._set("continuous"), new._set("discrete")):
                mean.copy_(norm.running_mean if norm.running_mean is not None else mean)
                var.copy_(norm.running_var if norm.running_var is not None else var)
            if norm.affine:
                new.weight.copy_(norm.weight)
                new.bias.copy_(norm.bias)
        if not norm.affine:
            new.requires_grad_(False)
        reference = norm.weight if norm.affine else norm.running_mean
        return new if reference is None else new.to(reference.device, reference.dtype)

    def _set(self, state: State) -> tuple[Tensor, Tensor]:
        if state == "continuous":
            return self.running_mean_c, self.running_var_c
        return self.running_mean_q, self.running_var_q

    @property
    def _in_use(self) -> tuple[Tensor, Tensor]:
        discrete = self.is_discrete and self.mode != "off"
        return self._set("discrete" if discrete else "continuous")

    def folded(self) -> tuple[Tensor, Tensor]:
        """(scale, shift) with which eval mode computes y * scale + shift."""
        mean, var = self._in_use
        scale = self.weight * torch.rsqrt(var + self.eps)
        return scale, self.bias - mean * scale

    def forward(self, y_c: Tensor, y_q: Tensor | None = None) -> Tensor:
        """z_c of y_c; where y_q is given, mu_q and sigma_q are updated with its statistics."""
        if y_q is not None and self.training:
            self.observe(y_q)
        if self._sums is not None:
            return self._sums.normalise(y_c, self)
        if self.training:
            mean, var = self._in_use
            return F.batch_norm(
                y_c, mean, var, self.weight, self.bias, True, self.momentum, self.eps
            )
        scale, shift = self.folded()
        return torch.addcmul(shift.view(1, -1, 1, 1), y_c, scale.view(1, -1, 1, 1))

    @property
    def wants_discrete(self) -> bool:
        """Whether y_q is to be computed in a training step now."""
        follows_mode = self._sums is None and self.state is None
        return self.mode == "paper" and self.observing and follows_mode

    @torch.no_grad()
    def observe(self, y_q: Tensor) -> None:
        """Update mu_q and sigma_q with the batch statistics of y_q.

        The normalised batch is not used, but on a CPU `torch.var_mean` takes ten times as long,
        and `torch.batch_norm_update_stats` declares no mutation: torch.compile would drop it.
        """
        mean, var = self.running_mean_q, self.running_var_q
        F.batch_norm(y_q.to(mean.dtype), mean, var, training=True, momentum=self.momentum)

    def extra_repr(self) -> str:
        """Show size and mode."""
        return f"{self.num_features}, mode={self.mode!r}, eps={self.eps:g}"


class _Average:
    """Statistics of several batches, averaged with equal weights."""

    def __init__(self, norm: StateBatchNorm2d) -> None:
        self.mean = torch.zeros_like(norm.running_mean_q)
        self.var = torch.zeros_like(norm.running_var_q)
        self.batches = 0

    def normalise(self, y: Tensor, norm: StateBatchNorm2d) -> Tensor:
        """Normalise by the batch itself and count its statistics."""
        self.batches += 1
        return F.batch_norm(
            y, self.mean, self.var, norm.weight, norm.bias, True, 1.0 / self.batches, norm.eps
        )


def state_norms(network: nn.Module) -> list[StateBatchNorm2d]:
    """Every state BN of `network`."""
    return [module for module in network.modules() if isinstance(module, StateBatchNorm2d)]


def set_step(network: nn.Module, step: int) -> None:
    """Announce training step `step`, from 0: `paper` state BNs observe y_q in every k-th.

    Each keeps a flag and not a counter, so that a compiled network has two graphs at most.
    """
    for norm in state_norms(network):
        norm.observing = step % norm.every == 0


@torch.no_grad()
def estimate_statistics(
    network: nn.Module, batches: Iterable[Batch], state: State
) -> dict[StateBatchNorm2d, tuple[Tensor, Tensor]]:
    """Mean and variance before each state BN over `batches`, in `state`; no module changes."""
    count = 0
    norms = state_norms(network)
    modes = {module: module.training for module in network.modules()}
    network.eval()
    for norm in norms:
        norm._sums = _Average(norm)
    try:
        with network_state(network, state):
            for batch in batches:
                network(batch if isinstance(batch, Tensor) else batch[0])
                count += 1
        if count == 0:
            raise ConfigError(
                "statistics need one batch at least; there is none",
                "an iterator that was read before is empty: give a list, or make it anew.",
            )
        return {
            norm: (norm._sums.mean, norm._sums.var)
            for norm in norms
            if norm._sums is not None and norm._sums.batches
        }
    finally:
        for norm in norms:
            norm._sums = None
        for module, training in modes.items():
            module.training = training


def calibrate(network: nn.Module, batches: Iterable[Batch], state: State = "discrete") -> None:
    """Estimate the statistics of every `calibrate` state BN from scratch, in `state`.

    A batch is the network's input, or begins with it, as those of a DataLoader do.

    Inference uses the discrete ones. The continuous ones are for the `_continuous` metrics alone:
    their running averages lag behind while T, and with it the scale of W_c, still rises.
    """
    for norm, (mean, var) in estimate_statistics(network, batches, state).items():
        if norm.mode == "calibrate":
            running_mean, running_var = norm._set(state)
            running_mean.copy_(mean)
            running_var.copy_(var)


def eps_share(network: nn.Module, batches: Iterable[Batch]) -> float:
    """The mean share of eps in (variance + eps), with W_c: near 1 where eps drowns the signal.

    At a small T the weights, and with them the variance, are tiny.
    """
    shares = [
        (norm.eps / (var + norm.eps)).mean()
        for norm, (_, var) in estimate_statistics(network, batches, "continuous").items()
    ]
    return float(torch.stack(shares).mean()) if shares else 0.0
