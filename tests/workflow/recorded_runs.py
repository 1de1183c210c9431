"""Result folders in the form that finished training runs leave, made without training."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clipnoise.data.base import Dataset
from clipnoise.data.signature import Signature
from clipnoise.files import write_atomically, write_json
from clipnoise.methods.base import method_class
from clipnoise.models.base import Model
from clipnoise.privacy.budget import Privacy
from clipnoise.run.procedure import Training
from clipnoise.run.results import digest_of
from clipnoise.run.spec import RunSpec, to_mapping, write_spec

STEPS = (0, 50, 100, 150, 200)
STARTED = datetime(2026, 1, 5, 12, tzinfo=UTC)
COLUMNS = (
    "step,epsilon,train_loss,train_accuracy,validation_loss,validation_accuracy,"
    "test_loss,test_accuracy,examples_per_second,peak_memory_mb,seconds"
)


@dataclass(frozen=True, kw_only=True)
class Toy(Dataset):
    """A dataset by name only."""

    id = "toy"

    @property
    def signature(self) -> Signature:
        return Signature("features", (1,), 2)

    def sizes(self) -> dict[str, int]:
        return {"train": 1000, "validation": 100, "test": 100, "public": 0}


@dataclass(frozen=True, kw_only=True)
class Line(Model):
    """A model by name only."""

    id = "line"

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return True


def spec(method: str = "dp-sgd", *, epsilon: float = 1.0, seed: int = 0) -> RunSpec:
    """Return the spec of a run over names that no plug-in folder holds."""
    return RunSpec(
        dataset=Toy(),
        model=Line(),
        method=method_class(method)(learning_rate=0.1, clip_norm=1.0),
        privacy=Privacy(epsilon=epsilon),
        training=Training(expected_batch_size=100, steps=STEPS[-1], evaluations=len(STEPS) - 1),
        seed=seed,
    )


def rows(run: RunSpec, *, offset: float = 0.0) -> list[dict[str, float]]:
    """Return smooth metrics that depend on ε and seed."""
    assert run.privacy is not None
    assert run.privacy.epsilon is not None
    target = run.privacy.epsilon
    ceiling = 0.9 - 0.1 / target + 0.005 * run.seed + offset
    found = []
    for step in STEPS:
        progress = step / STEPS[-1]
        accuracy = 0.1 + (ceiling - 0.1) * math.sqrt(progress)
        loss = 2.3 * (1 - progress) + 0.4
        quality = {"loss": loss, "accuracy": accuracy}
        splits = {
            f"{split}_{name}": value
            for split in ("train", "validation", "test")
            for name, value in quality.items()
        }
        cost = {"examples_per_second": 5000.0, "peak_memory_mb": 300.0, "seconds": 6.0 * progress}
        found.append({"step": step, "epsilon": target * math.sqrt(progress), **splits, **cost})
    return found


def record(
    results: Path,
    run: RunSpec,
    *,
    offset: float = 0.0,
    status: str = "completed",
    release: str = "full",
) -> Path:
    """Write the result files of a run, the summary last, and return its folder."""
    folder = results / "runs" / run.folder
    table = rows(run, offset=offset)
    lines = [",".join(str(row[name]) for name in COLUMNS.split(",")) for row in table]
    last = table[-1]
    finals = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss")
    summary = {
        "hash": run.hash,
        "folder": run.folder,
        "spec": to_mapping(run),
        "status": status,
        "reason": None if status == "completed" else "loss is not finite after step 150",
        "steps_done": STEPS[-1],
        "final": {name: last[name] for name in (*finals, "train_accuracy", "train_loss")},
        "privacy": {
            "claim": "guarantee",
            "adjacency": "add-remove",
            "epsilon": last["epsilon"],
            "epsilon_target": last["epsilon"],
            "noise_multiplier": 1.1,
            "release": release,
        },
        "data": {},
        "seconds": 6.0,
        "parameters": 650,
        "git_commit": "0123456789ab",
        "started": STARTED.isoformat(),
        "finished": (STARTED + timedelta(seconds=8)).isoformat(),
    }
    text = "\n".join([COLUMNS, *lines]) + "\n"
    summary["digest"] = digest_of(summary, text)
    write_atomically(folder / "spec.yaml", write_spec(run))
    write_atomically(folder / "metrics.csv", text)
    write_atomically(folder / "run.log", f"trained {run.folder}\n")
    write_json(folder / "summary.json", summary)
    return folder


def damage(folder: Path) -> None:
    """Cut a summary in half, as a full disk does."""
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()))[:100])
