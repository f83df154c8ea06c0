"""What can be chosen by name: frozen entries, each with a lazy "module:attribute" target.

An entry is data. Listing, validating and printing help read entries only, so they import neither
torch nor torchvision; `Entry.load` imports the target when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from slb_autotune.errors import ConfigError, nearest


@dataclass(frozen=True)
class Entry:
    """One name that a configuration may use."""

    name: str
    summary: str
    target: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """Import the target."""
        module, _, path = self.target.partition(":")
        return attrgetter(path)(import_module(module))


class Registry(Mapping[str, Entry]):
    """A read-only mapping from name to entry whose look-up error names the nearest entry."""

    def __init__(self, kind: str, entries: tuple[Entry, ...]) -> None:
        self.kind = kind
        self._entries = MappingProxyType({entry.name: entry for entry in entries})

    def __getitem__(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise ConfigError(f"unknown {self.kind} {name!r}", nearest(name, self._entries))
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


NETWORKS = Registry(
    "network",
    (
        Entry(
            "resnet20",
            "ResNet20 for small images (He et al., 2016), option A shortcuts; 0.27 M parameters",
            "slb_autotune.nets.resnet20:resnet20",
            {"task": "classification"},
        ),
        Entry(
            "vgg_small",
            "VGG-Small: six convolutions 128-128-256-256-512-512 and one linear layer",
            "slb_autotune.nets.vgg_small:vgg_small",
            {"task": "classification"},
        ),
        Entry(
            "resnet18",
            "ResNet18 for ImageNet with Bi-Real shortcuts, one around every convolution",
            "slb_autotune.nets.resnet18:resnet18",
            {"task": "classification"},
        ),
        Entry(
            "vdsr",
            "VDSR super-resolution (Kim et al., 2016): 20 convolutions of 64, residual",
            "slb_autotune.nets.vdsr:vdsr",
            {"task": "super_resolution"},
        ),
    ),
)

DATASETS = Registry(
    "data set",
    (
        Entry(
            "digits",
            "1,797 grey 8x8 digits, embedded: nothing to download",
            "slb_autotune.data.digits:Digits",
            {"task": "classification"},
        ),
        Entry(
            "photos",
            "two colour photographs cut into tiles for super-resolution, embedded",
            "slb_autotune.data.photos:Photos",
            {"task": "super_resolution"},
        ),
        Entry(
            "fashion_mnist",
            "Fashion-MNIST: 60,000 + 10,000 grey 28x28 pictures of clothes",
            "slb_autotune.data.fashion_mnist:FashionMnist",
            {"task": "classification"},
        ),
        Entry(
            "cifar10",
            "CIFAR-10: 50,000 + 10,000 colour 32x32 images, python or binary version",
            "slb_autotune.data.cifar10:Cifar10",
            {"task": "classification"},
        ),
        Entry(
            "imagenet",
            "ILSVRC2012, or any train/ and val/ folders of one folder a class",
            "slb_autotune.data.imagenet:ImageNet",
            {"task": "classification"},
        ),
        Entry(
            "sr_folder",
            "super-resolution from folders of pictures: root/train and root/test",
            "slb_autotune.data.sr_folder:SrFolder",
            {"task": "super_resolution"},
        ),
    ),
)


SCHEDULES = Registry(
    "schedule",
    (
        Entry(
            "linear",
            "T_s + t (T_e - T_s)",
            "slb_autotune.quant.schedules:linear",
        ),
        Entry(
            "sin",
            "T_s + sin(t pi / 2) (T_e - T_s)",
            "slb_autotune.quant.schedules:sin",
        ),
        Entry(
            "exp",
            "T_s (T_e / T_s)**t, the paper's best",
            "slb_autotune.quant.schedules:exp",
        ),
        Entry(
            "cosine",
            "T_s + (1 - cos(t pi)) / 2 (T_e - T_s)",
            "slb_autotune.quant.schedules:cosine",
        ),
    ),
)

SAMPLERS = Registry(
    "sampler",
    (
        Entry(
            "tpe",
            "tree-structured Parzen estimator: multivariate, grouped, constant liar",
            "slb_autotune.search.samplers:tpe",
        ),
        Entry(
            "nsga2",
            "NSGA-II, a genetic algorithm for two or three objectives",
            "slb_autotune.search.samplers:nsga2",
        ),
        Entry(
            "nsga3",
            "NSGA-III, a genetic algorithm for three or four objectives",
            "slb_autotune.search.samplers:nsga3",
        ),
        Entry(
            "gp",
            "Gaussian process: few, costly trials",
            "slb_autotune.search.samplers:gp",
        ),
        Entry(
            "random",
            "independent draws",
            "slb_autotune.search.samplers:uniform",
        ),
        Entry(
            "grid",
            "every combination, in order",
            "slb_autotune.search.samplers:grid",
        ),
    ),
)
