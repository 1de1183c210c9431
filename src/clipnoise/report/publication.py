"""A study's results for others: a row per run as CSV and Parquet, and their description."""

from __future__ import annotations

import hashlib
import io
import math
from pathlib import Path
from typing import Any

import pandas as pd

from clipnoise.data.measures import COLUMNS as MEASURED
from clipnoise.errors import UserError
from clipnoise.report.formats import exact, safe_csv
from clipnoise.report.records import NON_PRIVATE, split
from clipnoise.report.tables import choose_metric
from clipnoise.studies.collect import RUN_COLUMNS, TEXT
from clipnoise.studies.study import Study

COLUMNS = {  # column → its kind and what it holds
    "study": ("sc:Text", "Name of the study."),
    "panel": ("sc:Text", "Panel of the study: one task on one track."),
    "dataset": ("sc:Text", "Dataset."),
    "model": ("sc:Text", "Model."),
    "method": ("sc:Text", "Method."),
    "label": ("sc:Text", "What reports call the method; it tells variants apart."),
    "epsilon": ("sc:Float", "Target ε; empty without privacy."),
    "epsilon_achieved": ("sc:Float", "ε of the run, at most the target; empty without privacy."),
    "delta": ("sc:Float", "δ; empty without privacy."),
    "noise_multiplier": ("sc:Float", "Noise multiplier σ; empty without privacy."),
    "claim": ("sc:Text", "What the ε is: guarantee, nominal or non-private."),
    "adjacency": ("sc:Text", "The relation between neighbouring datasets; empty without privacy."),
    "accountant": ("sc:Text", "Whose analysis turned σ into ε; empty without privacy."),
    "audit": ("sc:Text", "What an audit found of the method; empty where there was none."),
    "metric": ("sc:Text", "What `value` is."),
    "value": ("sc:Float", "The metric on the test split; empty unless the run completed."),
    "seed": ("sc:Integer", "Seed of the run."),
    "status": ("sc:Text", "completed, diverged, missing or corrupt."),
    "hyperparameters": ("sc:Text", "The hyper-parameters, as JSON."),
    "seconds": ("sc:Float", "Time of the whole run, in seconds."),
    "hash": ("sc:Text", "Hash of everything that specifies the run."),
    "commit": ("sc:Text", "Commit of the code that trained it."),
}

# The specification asks for this context word by word, in this order.
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{name: f"cr:{name}" for name in ("citeAs", "column")},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{
        name: f"cr:{name}"
        for name in (
            *("extract", "field", "fileProperty", "fileObject", "fileSet", "format", "includes"),
            *("isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet"),
            *("references", "regex", "repeated", "replace"),
        )
    },
    "sc": "https://schema.org/",
    **{name: f"cr:{name}" for name in ("separator", "source", "subField", "transform")},
}


def run_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per planned run of a study, with the columns of COLUMNS."""
    ranked = pd.Series("", index=runs.index)
    values = pd.Series(math.nan, index=runs.index)
    for _, rows in split(runs, "panel"):
        column = choose_metric(rows).column
        ranked[rows.index] = column
        values[rows.index] = rows[column].where(rows["status"] == "completed")
    named = runs.rename(columns={"git_commit": "commit"}).assign(
        metric=ranked,
        value=values,
        epsilon_achieved=runs["epsilon_achieved"].round(6),
        noise_multiplier=runs["noise_multiplier"].round(6),
        seconds=runs["seconds"].round(3),
    )
    return named[list(COLUMNS)].astype({"seed": "int64"}).reset_index(drop=True)


def to_csv(rows: pd.DataFrame) -> str:
    """Return the rows as CSV, numbers in full precision."""
    lines = [
        {
            str(name): exact(value) if isinstance(value, float) else str(value)
            for name, value in row.items()
        }
        for row in rows.to_dict("records")
    ]
    return safe_csv(list(COLUMNS), lines)


def read_published(path: Path) -> pd.DataFrame:
    """Read the Parquet file of a study's results that `clipnoise publish` wrote, a row per run.

    Raises:
        UserError: the file is no such table.
    """
    try:
        return pd.read_parquet(path)[list(COLUMNS)]
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: not a table of `clipnoise publish`: {error}") from None


def published_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return published rows with the columns of runs.csv, as `records.read_runs` returns them.

    What is not published is empty: processor times, machines, and how hyper-parameters were found.

    Args:
        rows: what `read_published` returned.
    """
    private = rows["claim"] != NON_PRIVATE
    noise = "sigma=" + rows["noise_multiplier"].map("{:g}".format)
    budgets = ("eps=" + rows["epsilon"].map("{:g}".format)).where(rows["epsilon"].notna(), noise)
    known = rows.assign(
        budget=budgets.where(private, NON_PRIVATE),
        git_commit=rows["commit"],
        rank_by=rows["metric"].where(rows["metric"].isin(MEASURED), ""),
        **{name: rows["value"].where(rows["metric"] == name) for name in rows["metric"].unique()},
    )
    empty = {name: "" if name in TEXT else math.nan for name in RUN_COLUMNS if name not in known}
    more = [name for name in MEASURED if name in known]
    return known.assign(**empty)[[*RUN_COLUMNS, *more]]


def to_parquet(rows: pd.DataFrame) -> bytes:
    """Return the rows as Parquet."""
    buffer = io.BytesIO()
    rows.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()


def croissant(study: Study, name: str, table: bytes) -> dict[str, Any]:
    """Describe a Parquet file of rows in the Croissant format, a vocabulary for datasets.

    Args:
        study: whose results they are.
        name: of the file, without its ending.
        table: what the file holds, from `to_parquet`.

    Source: MLCommons, Croissant format specification 1.0.
    """
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"runs/{column}",
            "name": column,
            "description": said,
            "dataType": kind,
            "source": {"fileObject": {"@id": "runs-parquet"}, "extract": {"column": column}},
        }
        for column, (kind, said) in COLUMNS.items()
    ]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "alternateName": study.title,
        "description": " ".join(study.description.split()),
        **({"license": study.licence} if study.licence else {}),
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": "runs-parquet",
                "name": f"{name}.parquet",
                "contentUrl": f"{name}.parquet",
                "contentSize": f"{len(table)} B",
                "encodingFormat": "application/x-parquet",
                "sha256": hashlib.sha256(table).hexdigest(),
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "runs",
                "name": "runs",
                "description": "One record per planned run that the study reports.",
                "field": fields,
            }
        ],
    }
