"""A study whose Optuna storage is a real PostgreSQL server, as on a cluster."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from slb_autotune.errors import ConfigError
from slb_autotune.search.storage import StudyFolder, open_ledger, read_ledger
from tests.builders import play, tiny_study

pytest.importorskip("psycopg", reason="the extra `cluster` is not installed")


def postgres_binaries() -> Path | None:
    """Where the server's programs are; Debian keeps them off the PATH."""
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).parent
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


def unprivileged() -> str | None:
    """A user that PostgreSQL agrees to run as, where we are root; None to stay who we are."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    found = next((name for name in ("postgres", "nobody") if name in names), None)
    if found is None:
        pytest.skip("PostgreSQL does not run as root, and there is no other user")
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if (binaries := postgres_binaries()) is None:
        pytest.skip("PostgreSQL is not installed")
    initdb, pg_ctl = binaries / "initdb", binaries / "pg_ctl"
    user = unprivileged()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)
        database = folder / "db"
        run = {"user": user, "check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
        subprocess.run([initdb, "-D", database, "-U", "slb", "--auth=trust", "-N"], **run)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder}"
        log = folder / "log"
        subprocess.run([pg_ctl, "-D", database, "-o", options, "-l", log, "-w", "start"], **run)
        try:
            yield f"postgresql+psycopg://slb@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([pg_ctl, "-D", database, "-m", "immediate", "stop"], **run)


@pytest.mark.slow
def test_a_study_on_postgresql_is_opened_again_as_it_was(url: str, tmp_path: Path) -> None:
    config = tiny_study(
        name="on_postgres",
        budget={"trials": 12},
        storage={"folder": str(tmp_path), "optuna": url},
    )
    files = StudyFolder(tmp_path, config.name)
    first = open_ledger(config, files)
    play(first, 5)
    assert not files.journal_path.exists()
    # Another process looks, and the next session resumes.
    seen = read_ledger(config, files)
    assert [asdict(r) for r in seen.records.values()] == [
        asdict(r) for r in first.records.values()
    ]
    again = open_ledger(config, files)
    play(again)
    assert len(again.records) == 12
    assert again.snapshot().front()


@pytest.mark.slow
def test_postgresql_and_the_journal_give_the_same_trials(url: str, tmp_path: Path) -> None:
    found = []
    for storage in ({"optuna": url}, {}):
        folder = tmp_path / str(len(found))
        config = tiny_study(
            name="twin", budget={"trials": 8}, storage={"folder": str(folder), **storage}
        )
        files = StudyFolder(folder, "twin")
        files.path.mkdir(parents=True)
        ledger = open_ledger(config, files)
        play(ledger)
        found.append([record.params for record in ledger.records.values()])
    assert found[0] == found[1]


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    config = tiny_study(
        name="nowhere",
        storage={
            "folder": str(tmp_path),
            "optuna": "postgresql+psycopg://slb@127.0.0.1:1/postgres",
        },
    )
    with pytest.raises(ConfigError, match=r"storage\.optuna cannot be opened") as error:
        open_ledger(config, StudyFolder(tmp_path, "nowhere"))
    assert "\n" not in str(error.value.message)
