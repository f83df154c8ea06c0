"""Ray's cluster: started here or joined, and checked before the first trial."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from urllib.parse import urlsplit

import ray

from slb_autotune.errors import ConfigError


def start_ray(address: str | None, cpus: float) -> bool:
    """Connect to a cluster or start Ray here; whether we started it."""
    if ray.is_initialized():
        return False
    if address is None:
        ray.init(
            address="local",
            num_cpus=max(1, round(cpus)),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    else:
        _check_answers(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(address, str(error).splitlines()[0]) from error
    return address is None


def stop_ray() -> None:
    """End the Ray that `start_ray` started."""
    ray.shutdown()


def _check_answers(address: str) -> None:
    """Ask a `host:port` whether anything is there: Ray itself asks for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        if parts.port is not None:  # `auto` finds a cluster by itself
            socket.create_connection((parts.hostname, parts.port), timeout=10).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, str(error)) from error


def _no_cluster(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"there is no Ray cluster at {address!r} that lets us in: {reason}",
        "start one with `ray start --head`, copy its ~/.ray/auth_token here, or leave "
        "storage.ray out.",
    )


def probe_nodes(folder: Path) -> None:
    """On a cluster, check that every node can write into the run folder before the first trial."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return

    @ray.remote(num_cpus=0)
    def write(path: str) -> bool:
        probe = Path(path)
        probe.write_text("")
        return probe.exists()

    for node in nodes:
        name = node["NodeID"]
        where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(name, soft=False)
        path = folder / f".probe-{name}"
        try:
            ray.get(write.options(scheduling_strategy=where).remote(str(path.absolute())))
        except Exception as error:
            raise ConfigError(
                f"node {node['NodeManagerAddress']} cannot write to {folder}",
                "storage.folder must be a folder that all nodes share.",
            ) from error
        if not path.exists():
            raise ConfigError(
                f"node {node['NodeManagerAddress']} writes to a {folder} of its own",
                "storage.folder must be a folder that all nodes share.",
            )
        path.unlink()
