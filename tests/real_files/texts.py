"""Parquet files as the Hugging Face hub has them, and tokenizers as weights folders have them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clipnoise.data.base import dataset_class
from clipnoise.data.labelled import UNLABELLED, LabelledTexts
from clipnoise.data.text import TOKENIZERS, TokenizerName

TEXT = """the a film is was good bad story actor plain river stone and not of with cat dog house
tree green blue slow fast old new light dark quiet loud"""
WORDS = TEXT.split()
SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
TRAIN, TEST = 60, 24


def sentence(number: int, label: int) -> str:
    """Return a sentence that no other number has; a word of it tells its label."""
    length = len(WORDS)
    words = [WORDS[(number * 7 + place * (1 + number // length)) % length] for place in range(5)]
    return f"{' '.join(words)} {('bad', 'good', 'plain')[label % 3]} {number}"


def table(columns: Sequence[str], labels: Sequence[int], start: int = 0) -> pa.Table:
    """Return a table of texts with a label and an index, typed as on the hub."""
    numbers = range(start, start + len(labels))
    texts = {
        column: pa.array(
            [
                f"{sentence(number, label if not place else 0)}<br />"
                for number, label in zip(numbers, labels, strict=True)
            ]
        )
        for place, column in enumerate(columns)
    }
    indices = pa.array(list(numbers), pa.int32())
    return pa.table({**texts, "label": pa.array(labels, pa.int64()), "idx": indices})


def write_table(path: Path, content: pa.Table) -> None:
    """Write a Parquet file, its folders too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path)


def labels_of(kind: type[LabelledTexts], count: int) -> list[int]:
    """Return labels in turn; every fifth row is unlabelled where the source has such rows."""
    labels = [row % kind.classes for row in range(count)]
    return [-1 if kind.drops_unlabelled and row % 5 == 4 else one for row, one in enumerate(labels)]


def texts(name: str) -> type[LabelledTexts]:
    """Return the class of a dataset of texts."""
    kind = dataset_class(name)
    assert issubclass(kind, LabelledTexts)
    return kind


def write_texts(cache: Path, name: str) -> None:
    """Write the files of a dataset of texts, and the tokenizer that it needs by default."""
    kind, start = texts(name), 0
    for part, files in kind.pieces.items():
        for file in files:
            count = (TRAIN if part == "train" else TEST) // len(files)
            labels, first = labels_of(kind, count), start
            if part == UNLABELLED:
                labels, first = [-1] * TRAIN, 1000
            content = table(kind.columns, labels, first)
            write_table(cache / "raw" / (kind.raw or name) / file, content)
            start += count
    write_bert(cache.parent / "weights", "bert-base")


def write_amazon(cache: Path) -> None:
    """Write Amazon's reviews, and IMDB's, in which words are counted."""
    write_texts(cache, "amazon")
    write_texts(cache, "imdb")


def write_bert(weights: Path, name: TokenizerName, size: int | None = None) -> None:
    """Write vocab.txt: as many lines as the real one, and special tokens where it has them."""
    words = dict(enumerate([*WORDS, *"bcdefghijklmnopqrstuvwxyz0123456789"], start=1000))
    pieces = {2000 + digit: f"##{digit}" for digit in range(10)}
    known = {**SPECIAL, **words, **pieces}
    count = size or TOKENIZERS[name].vocabulary
    folder = weights / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = (known.get(place, f"[unused{place}]") for place in range(count))
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")


def write_arxiv(cache: Path) -> None:
    """Write some papers of the metadata snapshot, with the keys and line breaks of the real one."""
    folder = cache / "raw" / "arxiv-abstracts"
    folder.mkdir(parents=True, exist_ok=True)
    papers = [
        {"id": f"0704.{number:04}", "submitter": "A. Author", "authors": "A. Author"}
        | {"title": "A title", "comments": None, "journal-ref": None, "doi": None}
        | {"report-no": None, "categories": "math.CO", "license": None}
        | {"abstract": f"  {sentence(number, 0)}\n{' '.join(WORDS[: number % 20])}\n"}
        | {"versions": [{"version": "v1", "created": "Mon, 2 Apr 2007 19:18:42 GMT"}]}
        | {"update_date": "2008-11-26", "authors_parsed": [["Author", "A.", ""]]}
        for number in range(TRAIN)
    ]
    lines = "".join(json.dumps(paper) + "\n" for paper in papers)
    (folder / "arxiv-metadata-oai-snapshot.json").write_text(lines)
    write_bert(cache.parent / "weights", "tiny-bert")


SIZES = {"validation_examples": 8, "test_examples": 20}
SEQUENCES = {**SIZES, "length": 32}
COUNTED = {**SIZES, "words": 40}
PLAIN = ("mnli", "qnli", "qqp", "snli", "sst2")
RAW: dict[str, Callable[[Path], None]] = {
    "arxiv-abstracts": write_arxiv,
    **{name: partial(write_texts, name=name) for name in PLAIN},
    **dict.fromkeys(("imdb", "imdb-words", "imdb-bow"), partial(write_texts, name="imdb")),
    **dict.fromkeys(("amazon", "amazon-words", "amazon-bow"), write_amazon),
}
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {**SEQUENCES, "train_examples": 40} for name in (*PLAIN, "imdb", "amazon")},
    **{f"{name}-bow": {**COUNTED, "train_examples": 40} for name in ("imdb", "amazon")},
    **{
        f"{name}-words": {**COUNTED, **SEQUENCES, "train_examples": 40}
        for name in ("imdb", "amazon")
    },
}
OPTIONS["arxiv-abstracts"] = {**SEQUENCES, "train_examples": 25}
OPTIONS["snli"]["test_examples"] = 19
