"""Tracking: MLflow as a view of the result files.

Result files are the truth; the store can be deleted and rebuilt from them at any time. One run spec
has one active MLflow run per store, found by its `hash` tag. A view (view.py) is a run's state;
write.py brings the store to it, for a run that trains (live.py) and for finished ones (`sync`).
The tag `digest` identifies the result files that a run shows and is written last, so that a run
whose writer died is noticed and repaired.

Belongs here: everything that talks to MLflow. Does not: training, which knows nothing of it.
Nothing here imports mlflow before it is used.
"""

from clipnoise.tracking.live import LiveRun, Mode
from clipnoise.tracking.store import Stamp, StoreError, init_store, read_stamp, tracking_fault
from clipnoise.tracking.view import Membership
from clipnoise.tracking.write import SyncReport, sync

__all__ = [
    "LiveRun",
    "Membership",
    "Mode",
    "Stamp",
    "StoreError",
    "SyncReport",
    "init_store",
    "read_stamp",
    "sync",
    "tracking_fault",
]
