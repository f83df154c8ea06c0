"""`python -m slb_autotune.cli.dashboard RUNS STUDY PORT`: optuna-dashboard over one study.

It opens the storage by itself: a database's password is on no command line. The server handles
each request in a thread of its own, since a browser opens connections that it does not use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

from slb_autotune.cli.servers import HOST


class ThreadingServer(ThreadingMixIn, WSGIServer):
    """One thread per request."""

    daemon_threads = True


def serve_study(runs: Path, study: str, port: int) -> None:
    """Serve a study on loopback until the process is ended."""
    from optuna_dashboard import wsgi

    from slb_autotune.search.storage import StudyFolder, open_storage

    files = StudyFolder(runs, study)
    page = wsgi(open_storage(files.config(), files, writes=False))
    with make_server(HOST, port, page, server_class=ThreadingServer) as server:
        server.serve_forever()


if __name__ == "__main__":
    serve_study(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
