"""Tracking: MLflow as a view of the result files.

Result files are the truth; the store can be deleted and rebuilt from them at any time. Training
knows nothing of MLflow: `sync` reads the files of finished runs, and the progress of those that
train, and brings the store to the state that they describe. One run spec has one active MLflow run
per results folder, found by its `hash` tag. A view (view.py) is what MLflow shows of a run. The tag
`digest` says what that is and is written last, so that a run that was not written whole is noticed
and repaired.

Belongs here: everything that talks to MLflow. Does not: training, which knows nothing of it.
Nothing here imports mlflow before it is used.
"""

from clipnoise.tracking.store import StoreError, note, read_notes, tracking_fault
from clipnoise.tracking.syncer import MeansTable, SyncReport, sync
from clipnoise.tracking.view import Membership

__all__ = [
    "MeansTable",
    "Membership",
    "StoreError",
    "SyncReport",
    "note",
    "read_notes",
    "sync",
    "tracking_fault",
]
