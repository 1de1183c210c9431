"""A user's own data, in each of the formats that are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COUNTS = {"train": 60, "test": 20}
CLASSES, FEATURES = 3, ("age", "weight", "pulse")


def table(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return made-up columns: three numbers, and a class that follows from them."""
    draws = np.random.default_rng(seed)
    outcome = np.arange(count) % CLASSES
    numbers = {
        name: outcome * (1 + i) + draws.normal(size=count) for i, name in enumerate(FEATURES)
    }
    return {**numbers, "outcome": outcome}


def write_parquet(cache: Path, name: str = "patients", counts: dict[str, int] = COUNTS) -> None:
    """Write the two files of a folder as Parquet, one column a number."""
    import pandas as pd

    folder = cache / "raw" / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate(counts.items()):
        pd.DataFrame(table(count, seed)).to_parquet(folder / f"{part}.parquet", index=False)


def write_examples(folder: Path) -> None:
    """Write the files that the documentation describes: a table, texts and images."""
    import pandas as pd
    from PIL import Image

    draws = np.random.default_rng(0)
    outcome = draws.permutation(np.arange(1250) % 5 // 4)  # one in five is ill
    patients = {
        "age": 30 + 20 * outcome + draws.integers(0, 40, 1250),
        "weight": draws.normal(75, 12, 1250).round(1),
        "outcome": np.array(["well", "ill"])[outcome],
    }
    pd.DataFrame(patients).to_csv(folder / "patients.csv", index=False)
    persons = np.repeat(np.arange(300), draws.integers(1, 8, 300))
    visits = {
        "person": np.array([f"P{number:03d}" for number in persons]),
        "sex": np.array(["f", "m"])[persons % 2],
        "income": draws.integers(12, 90, len(persons)) * 1000,
        "claim": draws.integers(0, 2, len(persons)),
    }
    frame = pd.DataFrame(visits)
    frame.loc[frame.index % 11 == 3, "income"] = None
    frame.to_csv(folder / "visits.csv", index=False)
    common, telling = ["the", "offer", "meeting", "today"], [["lunch", "notes"], ["prize", "win"]]
    mails = [
        " ".join(draws.permutation([*draws.choice(common, 4), *draws.choice(telling[spam], 2)]))
        for spam in outcome
    ]
    pd.DataFrame({"text": mails, "label": np.array(["ham", "spam"])[outcome]}).to_parquet(
        folder / "mails.parquet"
    )
    sessions = [
        (draws.integers(1, 10, 3 + place % 6) + 10 * ill).tolist()
        for place, ill in enumerate(outcome[:500])
    ]
    pd.DataFrame({"pages": sessions, "bought": outcome[:500]}).to_parquet(
        folder / "sessions.parquet"
    )
    labels = np.arange(250) % 10
    pixels = draws.integers(0, 128, (250, 16, 16, 3)) + 12 * labels[:, None, None, None]
    np.savez(folder / "photos.npz", pixels=pixels.astype("uint8"), label=labels)
    for place, ill in enumerate(outcome[:200]):
        picture = folder / "data" / "raw" / "pets" / "all" / ["cat", "dog"][ill] / f"{place}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        rows = draws.integers(0, 128, (20 + place % 5, 24, 3)) + 100 * ill
        Image.fromarray(rows.astype("uint8")).save(picture)
    kinds, regions = np.array(["car", "home", "life"]), np.array(["north", "south"])
    policies = {
        "kind": kinds[draws.integers(0, 3, 500)],
        "region": regions[draws.integers(0, 2, 500)],
        "years": draws.integers(0, 40, 500),
        "renewed": outcome[:500],
    }
    pd.DataFrame(policies).to_csv(folder / "policies.csv", index=False)


RAW: dict[str, Callable[[Path], None]] = {"own": write_parquet}
OPTIONS: dict[str, dict[str, Any]] = {
    "own": {
        "name": "patients",
        "inputs": FEATURES,
        "target": "outcome",
        "shape": (len(FEATURES),),
        "outputs": CLASSES,
        "training_file": COUNTS["train"],
        "test_file": COUNTS["test"],
        "validation_examples": 10,
    }
}
