"""The store: MLflow's settings, and how its address is shown."""

from __future__ import annotations

import os

import pytest

from slb_autotune.tracking import configure_environment, public_address


def test_settings_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    configure_environment()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("http://someone:secret@host:5000/path", "host:5000"),
        ("sqlite:////a/b/mlflow.db", "mlflow.db"),
    ],
)
def test_an_address_is_shown_without_credentials(uri, address):
    assert public_address(uri) == address
