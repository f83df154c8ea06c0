"""Every study file is valid, says what it answers, and trains where its data is at hand."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from slb_autotune import data
from slb_autotune.config.section import Section
from slb_autotune.config.study import ParameterConfig, StudyConfig
from slb_autotune.search.storage import blank_ledger
from slb_autotune.search.warm_start import initial_configurations
from slb_autotune.training.loop import Progress, Trial
from tests.data.samples import cifar10_root, class_folders, image_folders

FILES = sorted((Path(__file__).parents[1] / "search_spaces").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_valid_and_says_what_it_answers(path: Path) -> None:
    assert "# What it answers: " in path.read_text()
    config = StudyConfig.from_file(path)
    assert config.name == path.stem
    assert StudyConfig.from_mapping(config.to_mapping()) == config


def test_the_readme_describes_every_field() -> None:
    text = (FILES[0].parent / "README.md").read_text()
    sections = [StudyConfig, *(f.annotation for f in StudyConfig.model_fields.values())]
    sections.append(ParameterConfig)
    for section in sections:
        if isinstance(section, type) and issubclass(section, Section):
            for name in section.model_fields:
                assert f"| `{name}` |" in text, name


def root_of(name: str, folder: Path) -> dict[str, str]:
    """Where a data set is; small folders of pictures are made."""
    if name == "cifar10":
        return {"data.root": str(cifar10_root())}
    if name == "imagenet":
        return {"data.root": str(class_folders(folder))}
    if name == "sr_folder":
        return {"data.root": str(image_folders(folder))}
    return {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_first_trial_takes_a_step(path: Path, tmp_path: Path) -> None:
    config = StudyConfig.from_file(path)
    base = config.base()
    tiny = {
        **root_of(base.data.name, tmp_path),
        **{"epochs": 1, "batch_size": 2, "device": "cpu", "amp": "off"},
        **{"data.workers": 0, "data.patches": 2, "data.patch": 24},
        **{"norm.batches": 1, "data.val_fraction": 0.2},
    }
    if base.data.name == "imagenet":
        tiny |= {"data.image_size": 32}
    small = StudyConfig.from_mapping(
        {
            **config.to_mapping(),
            "trial": base.updated(tiny).to_mapping(),
            "recipe": None,
            "warm_start": {**config.warm_start.model_dump(), "sensitivity": 0},
            "storage": {"folder": str(tmp_path)},
        }
    )
    ledger = blank_ledger(small)
    for source, values in initial_configurations(ledger):
        ledger.enqueue([values], source)
    found = ledger.ask()
    assert found is not None
    trial_config = ledger.records[found[0]].config
    trial = Trial(trial_config, data.info(trial_config.data), torch.device("cpu"))
    steps: list[float] = []

    def one_step(progress: Progress) -> None:
        steps.append(progress.loss)
        raise StopIteration

    with suppress(StopIteration):
        trial.train_epoch(0, one_step)
    assert torch.tensor(steps).isfinite().all()
    assert len(steps) == 1
