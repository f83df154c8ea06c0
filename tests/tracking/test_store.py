"""The store: MLflow's settings, and how it is named."""

from __future__ import annotations

import os

import pytest

from slb_autotune.tracking import place_of, settle_environment


def test_settings_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    settle_environment()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("http://someone:secret@host:5000/path", "host:5000"),
        ("sqlite:////a/b/mlflow.db", "mlflow.db"),
    ],
)
def test_a_place_is_named_without_secrets(uri, place):
    assert place_of(uri) == place
