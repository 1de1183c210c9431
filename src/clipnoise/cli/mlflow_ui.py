"""Show the recorded runs in MLflow's pages, on 127.0.0.1, until interrupted.

Prints, for every study, the page that compares its methods.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from clipnoise.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.tracking.store import StoreError, redacted, tracking_uri
    from clipnoise.tracking.ui import serve, study_pages

    uri = tracking_uri(arguments.results)
    if uri.startswith("http"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server with pages of its own: {redacted(uri)}")
    local = arguments.results / "mlflow.db"
    if uri.endswith(str(local.resolve())) and not local.exists():
        raise UserError(f"{local}: no recorded runs yet; `make quickstart` records some.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends with us
    print("MLflow is starting; this takes up to 20 seconds.", flush=True)
    try:
        with serve(arguments.results, port=arguments.port) as address:
            for name, link in study_pages(arguments.results, address).items():
                print(f"{name}: {link}")
            print(f"All experiments: {address}\nStop with Ctrl-C.", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except StoreError as error:
        print(f"clipnoise mlflow-ui: {error}", file=sys.stderr)
    return 1
