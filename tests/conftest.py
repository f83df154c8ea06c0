"""Every test runs on one thread: that is how trials run, and test processes share the cores."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Studies with real Ray take longest: begun first, nobody waits for them at the end."""
    items.sort(key=lambda item: item.path.name != "test_study.py")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    import torch  # here, for the process that only hands out tests does not need it

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making its tables takes seconds."""
    from slb_autotune.tracking import configure_environment, make_client

    configure_environment()
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    make_client(f"sqlite:///{path}").search_experiments()
    return path
