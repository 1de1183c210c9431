"""A study's results for others: a row per run as CSV and Parquet, and their description."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pandas as pd

from clipnoise.report.records import split
from clipnoise.report.tables import choose_metric
from clipnoise.studies.columns import LEAGUE, PUBLISHED, read_table
from clipnoise.studies.study import Study

TYPES = {str: "sc:Text", float: "sc:Float", int: "sc:Integer"}

# The specification asks for this context word by word, in this order.
CONTEXT: dict[str, object] = {
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
    """Return one row per planned run of a study, with the columns of PUBLISHED."""
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
    return named[list(PUBLISHED)].reset_index(drop=True)


def read_run_rows(path: Path) -> pd.DataFrame:
    """Read the Parquet file of a study's results that `clipnoise publish` wrote, a row per run.

    It may be that of a task of the league, from `clipnoise league publish`.

    Raises:
        UserError: the file is no such table.
    """
    found = read_table(path, PUBLISHED, LEAGUE)
    if "value" in found:
        return found
    value = found["test_accuracy"].where(found["status"] == "completed")
    named = found.rename(columns={"git_commit": "commit"})
    return named.assign(metric="test_accuracy", value=value, audit="")[list(PUBLISHED)]


def croissant(study: Study, name: str, file: bytes) -> dict[str, object]:
    """Describe a Parquet file of rows in the Croissant format, a vocabulary for datasets.

    Args:
        study: whose results they are.
        name: of the file, without its ending.
        file: what it holds, from `columns.to_parquet`.

    Source: MLCommons, Croissant format specification 1.0.
    """
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"runs/{name}",
            "name": name,
            "description": column.about,
            "dataType": TYPES[column.kind],
            "source": {"fileObject": {"@id": "runs-parquet"}, "extract": {"column": name}},
        }
        for name, column in PUBLISHED.items()
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
                "contentSize": f"{len(file)} B",
                "encodingFormat": "application/x-parquet",
                "sha256": hashlib.sha256(file).hexdigest(),
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
