"""The two tables of a study, a row per run and a row per evaluation: their columns and files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from clipnoise.data.measures import MEASURES, column_of
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.files import csv_text, without_formulas
from clipnoise.privacy.profile import PrivacyProfile
from clipnoise.run.outcome import Chance, Predicted, Recorded

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Hyper-parameters, as JSON, with the mean of the metric over the tuning seeds."""

    hyperparameters: str
    score: float


@dataclass(frozen=True, kw_only=True)
class FoundChoice:
    """What a search found.

    Attributes:
        metric: what the choice was made by.
        best: the best configuration and the next one.
        edges: hyper-parameters at an edge of their grid.
        seeds: how many tuning runs each configuration has.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    metric: str = ""
    best: tuple[Scored, ...] = ()
    edges: tuple[str, ...] = ()
    seeds: int = 0


class Column(NamedTuple):
    """A column: the type of its values, what they are, and their unit."""

    kind: type[Any]
    about: str
    unit: str = ""


IDENTITY = {
    "study": Column(str, "Name of the study."),
    "panel": Column(str, "Panel of the study: one task on one track."),
    "dataset": Column(str, "Dataset."),
    "model": Column(str, "Model."),
    "method": Column(str, "Method."),
    "label": Column(str, "What reports call the method; it tells variants apart."),
    "budget": Column(str, "Privacy budget, such as eps=1 or sigma=2, or non-private."),
    "epsilon": Column(float, "Target ε; empty without privacy."),
    "seed": Column(int, "Seed of the run."),
    "hash": Column(str, "Hash of everything that specifies the run."),
}
SPLITS = ("train", "validation", "test")
QUALITY = {
    column: about
    for split in SPLITS
    for column, about in (
        (f"{split}_loss", Column(float, f"Mean loss on the {split} split.")),
        (f"{split}_accuracy", Column(float, f"Accuracy on the {split} split, from 0 to 1.")),
    )
}
PACE = {
    "examples_per_second": Column(float, "Examples in steps, per second.", "1/s"),
    "peak_memory_mb": Column(float, "Most memory that the run has held.", "MB"),
    "seconds": Column(float, "Time of the whole run so far, in seconds.", "s"),
    "learning_rate": Column(float, "Learning rate; of a schedule the peak, in curves the value."),
}
RUN_COLUMNS = {
    **IDENTITY,
    "folder": Column(str, "Folder of the run's files, below that of all runs."),
    "status": Column(str, "completed, diverged, missing or corrupt."),
    "reason": Column(str, "Why the run was not completed."),
    "claim": Column(str, "What the ε is: guarantee, nominal or non-private."),
    "accountant": Column(str, "Whose analysis turned σ into ε; empty without privacy."),
    "sampler": Column(str, "How batches were drawn."),
    "adjacency": Column(str, "The relation between neighbouring datasets; empty without privacy."),
    "unit": Column(str, "What is protected: example, user or node."),
    "caveat": Column(str, "Why the claim is only nominal, if the reason is not the sampler."),
    "randomness": Column(str, "secure if noise and batches came from a secure source, or seeded."),
    "release": Column(str, "What the statement assumes to be published."),
    "epsilon_achieved": Column(float, "ε of the run, at most the target; empty without privacy."),
    "delta": Column(float, "δ; empty without privacy."),
    "noise_multiplier": Column(float, "Noise multiplier σ; empty without privacy."),
    "sensitivity": Column(float, "The furthest that one unit moves the released gradient."),
    "microbatch_size": Column(int, "Examples whose gradients are averaged before clipping."),
    "clip_norm": Column(float, "Clip norm C; the largest of all steps if it changes."),
    "sampling_rate": Column(float, "Sampling rate q = B/n."),
    "groups": Column(int, "Groups that the units are divided into; each is drawn from in turn."),
    "steps": Column(int, "Steps that the accountant composes."),
    "examples": Column(int, "Number n of private units."),
    **QUALITY,
    "training_seconds": Column(float, "Time in steps.", "s"),
    "cpu_seconds": Column(float, "Processor time in steps.", "s"),
    **PACE,
    "parameters": Column(int, "Number of trained parameters."),
    "engine": Column(str, "What computed clipped sums."),
    "hyperparameters": Column(str, "The hyper-parameters, as JSON."),
    "git_commit": Column(str, "Commit of the code that trained it."),
    "fingerprint": Column(str, "Digest of the code that trained it."),
    "plugins": Column(str, "Plug-ins that the run used, with their digests."),
    "data_digest": Column(str, "Digest of all files that the run read."),
    "torch": Column(str, "Version of PyTorch."),
    "host": Column(str, "Machine."),
    "cpu": Column(str, "Its processor."),
    "gpu": Column(str, "Its graphics card."),
    "started": Column(str, "When the run began, as ISO 8601."),
    "finished": Column(str, "When it ended, as ISO 8601."),
    **{f"{split}_examples": Column(int, f"Size of the {split} split.") for split in SPLITS},
    "data": Column(str, "Id of the dataset; a scale may have replaced the one that was planned."),
    "tuned": Column(str, "Those of the hyper-parameters that a search chose, as JSON."),
    "configurations": Column(int, "Configurations that the search tries."),
    "tuning_runs": Column(int, "Runs of the search."),
    "charge": Column(str, "How the search is charged for."),
    "search": Column(int, "Which of repeated searches chose for it, from 1; empty for one alone."),
    "epsilon_with_tuning": Column(float, "ε of the run with its search."),
    "tuning_remark": Column(str, "What there is to say of that ε."),
    "choice": Column(FoundChoice, "What the search found."),
    "passes_per_step": Column(int, "Gradients of each drawn example in a step."),
    "audit": Column(str, "What an audit found of the method; empty where there was none."),
    "scale_spread": Column(float, "Ratio of the 99% and 1% quantiles of gradients' scales."),
    "diagnostics": Column(Recorded, "What was recorded of Adam's moments."),
    "chance": Column(Chance, "The best constant prediction and its levels."),
    "rank_by": Column(str, "Column of the metric that the panel ranks by."),
    "confusion": Column(Predicted, "How often each class was predicted on the test split."),
    "profile": Column(PrivacyProfile, "δ by ε, and what follows from it, of the run."),
    "evaluated_examples": Column(int, "Most examples measured before the last evaluation."),
    "correct": Column(str, "A bit for each test example that is predicted right, in Base64."),
}
CURVE_COLUMNS = {
    **IDENTITY,
    "step": Column(int, "Steps done."),
    "epsilon_spent": Column(float, "ε up to this step; empty without privacy."),
    **QUALITY,
    **PACE,
}
MEASURED = {  # columns of the metrics that a study asks for
    column_of(name, split): Column(float, f"The {one.name} on the {split} split.")
    for split in ("test", "validation")
    for name, one in MEASURES.items()
}
_FIRST = (*IDENTITY, "epsilon_achieved", "delta", "noise_multiplier", "claim", "adjacency")
PUBLISHED = {  # a row per run, for others
    **{name: RUN_COLUMNS[name] for name in _FIRST if name not in ("budget", "seed", "hash")},
    **{name: RUN_COLUMNS[name] for name in ("accountant", "audit")},
    "metric": Column(str, "What `value` is."),
    "value": Column(float, "The metric on the test split; empty unless the run completed."),
    **{name: RUN_COLUMNS[name] for name in ("seed", "status", "hyperparameters", "seconds")},
    "hash": RUN_COLUMNS["hash"],
    "commit": RUN_COLUMNS["git_commit"],
}
LEAGUE = {  # a row per run of a task of the league
    **{
        name: RUN_COLUMNS[name]
        for name in (
            *(name for name in IDENTITY if name != "budget"),
            *("status", "claim", "accountant", "sampler", "adjacency", "epsilon_achieved", "delta"),
            *("noise_multiplier", "search", "validation_accuracy", "test_accuracy", "chance"),
            *("test_examples", "correct", "hyperparameters", "cpu_seconds", "seconds", "cpu"),
            *("git_commit", "data_digest"),
        )
    },
    "training_code": Column(str, "Digest of the code that trains the method on any data."),
}
ALL = {**RUN_COLUMNS, **CURVE_COLUMNS, **MEASURED, **PUBLISHED, **LEAGUE}
NESTED = frozenset(name for name, column in ALL.items() if is_dataclass(column.kind))


def require_types(row: Mapping[str, object]) -> None:
    """Raise TypeError where a row of one of the two tables has a value of a wrong type."""
    for name, value in row.items():
        kind = ALL[name].kind
        if value is not None and not isinstance(value, float | int if kind is float else kind):
            raise TypeError(f"{name}: {value!r}")


def table(columns: Mapping[str, Column], rows: Iterable[Mapping[Any, Any]]) -> pa.Table:
    """Return rows as a table; what a row lacks is empty, and so is NaN."""
    import pyarrow as pa

    plain = [
        {
            name: to_plain(one) if is_dataclass(one) else None if one != one else one
            for name, one in row.items()
        }
        for row in rows
    ]
    return pa.Table.from_pylist(plain, schema=schema(columns))


def schema(columns: Mapping[str, Column]) -> pa.Schema:
    """Return the schema of some columns, with what they are and their units as metadata."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field(name, _arrow(one.kind), metadata={"about": one.about, "unit": one.unit})
            for name, one in columns.items()
        ]
    )


def _arrow(kind: Any) -> pa.DataType:
    """Return the type of Arrow for a type: plain, a tuple, a mapping from text, or a dataclass."""
    import pyarrow as pa

    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return pa.struct([(field.name, _arrow(hints[field.name])) for field in fields(kind)])
    if get_origin(kind) is tuple:
        return pa.list_(_arrow(get_args(kind)[0]))
    if get_origin(kind) is dict:
        return pa.map_(pa.string(), _arrow(get_args(kind)[1]))
    if get_origin(kind) in (Union, UnionType):  # with None: every value may be missing
        return _arrow(get_args(kind)[0])
    return {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}[kind]


def to_parquet(rows: pa.Table) -> bytes:
    """Return a table as a Parquet file; the same bytes for the same table."""
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def to_csv(rows: pa.Table) -> str:
    """Return a table as CSV for other programs, numbers with all digits, nested values as JSON.

    No spreadsheet finds a formula in it.
    """
    lines = rows.to_pylist(maps_as_pydicts="strict")
    for row in lines:
        nested = {name: value for name, value in row.items() if isinstance(value, dict)}
        row |= {name: json.dumps(value) for name, value in nested.items()}
    return csv_text(rows.column_names, map(without_formulas, lines))


def read_table(path: Path, *schemas: Mapping[str, Column]) -> pd.DataFrame:
    """Read a Parquet file that the suite wrote.

    Args:
        path: the file.
        schemas: the columns that it must have, or those of another table that it may be. Of any
            other columns those of metrics are read, too.

    Returns:
        As from `frame`.

    Raises:
        UserError: there is no such file, it is no Parquet file, lacks a column, or has one of
            another type.
    """
    import pyarrow as pa
    from pyarrow import parquet

    made = "`clipnoise collect` and `clipnoise publish` write such tables."
    try:
        found = parquet.ParquetFile(io.BytesIO(path.read_bytes())).read()
        names = set(found.column_names)
        columns = next((one for one in schemas if one.keys() <= names), schemas[0])
        for name in (one for one in columns if one not in names):
            raise UserError(f"{path}: no column {name!r}. {made}")
        known = {**columns, **{name: one for name, one in MEASURED.items() if name in names}}
        return frame(found.select(list(known)).cast(schema(known)))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. {made}") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path}: truncated, damaged or not a Parquet table ({error}). Delete it, and the next "
            f"call of Snakemake makes it again. {made}"
        ) from None


def frame(rows: pa.Table) -> pd.DataFrame:
    """Return a table to compute with.

    Returns:
        Whole numbers as int64 where none is missing, other numbers as float64 with NaN for a
        missing one, text with "", and nested values as dataclasses or None.
    """
    import pandas as pd

    return pd.DataFrame({name: _series(name, rows[name]) for name in rows.column_names})


def _series(name: str, cells: pa.ChunkedArray) -> pd.Series:
    import pandas as pd

    kind = ALL[name].kind
    if is_dataclass(kind):
        plain = cells.to_pylist(maps_as_pydicts="strict")
        parsed = [None if one is None else parse(kind, one, key=name) for one in plain]
        return pd.Series(parsed, dtype=object)
    found: pd.Series = cells.to_pandas()
    return found.fillna("") if kind is str else found
