"""Sentences and pairs of sentences, tokenised once for a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from clipnoise.data.fetch import RemoteFile
from clipnoise.data.labelled import Encode, Parts, Sequences, hub_files, one_file_each
from clipnoise.data.signature import Signature
from clipnoise.data.tokenisation import TOKENIZERS, Tokenizer, TokenizerName
from clipnoise.fields import Natural

GLUE = "A. Wang et al., GLUE, ICLR 2019; nyu-mll/glue on the Hugging Face hub"
GLUE_SPLIT = (
    "GLUE's test labels are not published: its validation set is the test set, as in the papers; "
    "validation and public from the training file"
)


@dataclass(frozen=True, kw_only=True)
class TokenisedTexts(Sequences):
    """Base of the datasets of texts for a pretrained model; of a pair the longer sentence is cut.

    Attributes:
        tokenizer: the model whose tokenizer cuts the text, from the weights folder.
    """

    preprocessing: ClassVar[str] = (
        "tokenised with the special tokens of the model, as [CLS] one [SEP] other [SEP] or "
        "[CLS] text [SEP]; 0 is padding"
    )

    tokenizer: TokenizerName = "bert-base"

    @property
    def signature(self) -> Signature:
        vocabulary = TOKENIZERS[self.tokenizer].vocabulary
        return Signature("tokens", (self.length,), self.classes, vocabulary=vocabulary)

    @property
    def prepared(self) -> str:
        return f"{self.id}@{self.tokenizer}-{self.length}"

    def preparation(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "length": self.length}

    def encoder(self, cache: Path, weights: Path) -> Encode:
        return Tokenizer(self.tokenizer, weights, self.length).encode


@dataclass(frozen=True, kw_only=True)
class Sst2(TokenisedTexts):
    """SST-2: is a phrase of a film review positive?"""

    id: ClassVar[str] = "sst2"
    title: ClassVar[str] = "SST-2"
    licence: ClassVar[str] = "not stated by its authors"
    source: ClassVar[str] = f"R. Socher et al., EMNLP 2013; {GLUE}"
    split: ClassVar[str] = GLUE_SPLIT
    columns: ClassVar[tuple[str, ...]] = ("sentence",)
    classes: ClassVar[int] = 2
    parts: ClassVar[Parts] = one_file_each("sst2", train="train", test="validation")
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("nyu-mll/glue", parts)
    training_file: ClassVar[int] = 67_349
    test_file: ClassVar[int] = 872


@dataclass(frozen=True, kw_only=True)
class Qnli(TokenisedTexts):
    """QNLI: does a sentence answer a question?"""

    id: ClassVar[str] = "qnli"
    title: ClassVar[str] = "QNLI"
    licence: ClassVar[str] = "CC BY-SA 4.0 (SQuAD)"
    source: ClassVar[str] = f"P. Rajpurkar et al., EMNLP 2016; {GLUE}"
    split: ClassVar[str] = GLUE_SPLIT
    columns: ClassVar[tuple[str, ...]] = ("question", "sentence")
    classes: ClassVar[int] = 2
    parts: ClassVar[Parts] = one_file_each("qnli", train="train", test="validation")
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("nyu-mll/glue", parts)
    training_file: ClassVar[int] = 104_743
    test_file: ClassVar[int] = 5_463


@dataclass(frozen=True, kw_only=True)
class Qqp(TokenisedTexts):
    """QQP: do two questions ask the same?"""

    id: ClassVar[str] = "qqp"
    title: ClassVar[str] = "QQP"
    licence: ClassVar[str] = "Quora's terms of use: non-commercial"
    source: ClassVar[str] = f"S. Iyer et al., First Quora Dataset Release, 2017; {GLUE}"
    split: ClassVar[str] = GLUE_SPLIT
    columns: ClassVar[tuple[str, ...]] = ("question1", "question2")
    classes: ClassVar[int] = 2
    parts: ClassVar[Parts] = one_file_each("qqp", train="train", test="validation")
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("nyu-mll/glue", parts)
    training_file: ClassVar[int] = 363_846
    test_file: ClassVar[int] = 40_430


@dataclass(frozen=True, kw_only=True)
class Mnli(TokenisedTexts):
    """MNLI: does a sentence follow from another, contradict it, or neither?

    Attributes:
        genres: whether the test sentences are of the genres of the training sentences.
    """

    id: ClassVar[str] = "mnli"
    title: ClassVar[str] = "MNLI"
    licence: ClassVar[str] = "by genre: OANC, CC BY 3.0, CC BY-SA 3.0, public domain"
    source: ClassVar[str] = f"A. Williams, N. Nangia, S. Bowman, NAACL 2018; {GLUE}"
    split: ClassVar[str] = f"{GLUE_SPLIT}; two test sets, matched and mismatched"
    columns: ClassVar[tuple[str, ...]] = ("premise", "hypothesis")
    classes: ClassVar[int] = 3
    parts: ClassVar[Parts] = one_file_each(
        "mnli", train="train", matched="validation_matched", mismatched="validation_mismatched"
    )
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("nyu-mll/glue", parts)
    training_file: ClassVar[int] = 392_702
    test_file: ClassVar[int] = 9_815  # matched; mismatched has 9,832

    genres: Literal["matched", "mismatched"] = "matched"

    @property
    def test_part(self) -> str:
        return self.genres

    def sizes(self) -> dict[str, int]:
        mismatched = self.genres == "mismatched" and self.test_examples is None
        return {**super().sizes(), **({"test": 9_832} if mismatched else {})}


@dataclass(frozen=True, kw_only=True)
class Snli(TokenisedTexts):
    """SNLI: does a sentence follow from another, contradict it, or neither?

    Rows without a label, on which the annotators did not agree, are left out.
    """

    id: ClassVar[str] = "snli"
    title: ClassVar[str] = "SNLI"
    licence: ClassVar[str] = "CC BY-SA 4.0"
    source: ClassVar[str] = (
        "S. Bowman, G. Angeli, C. Potts, C. Manning, EMNLP 2015; stanfordnlp/snli on the Hugging "
        "Face hub"
    )
    split: ClassVar[str] = "the published three files; public from the training file"
    preprocessing: ClassVar[str] = (
        f"rows without a label are left out; {TokenisedTexts.preprocessing}"
    )
    columns: ClassVar[tuple[str, ...]] = ("premise", "hypothesis")
    classes: ClassVar[int] = 3
    parts: ClassVar[Parts] = one_file_each(
        "plain_text", train="train", validation="validation", test="test"
    )
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("stanfordnlp/snli", parts)
    drops_unlabelled: ClassVar[bool] = True
    training_file: ClassVar[int] = 549_367
    validation_file: ClassVar[int] = 9_842
    test_file: ClassVar[int] = 9_824

    validation_examples: Natural = 9_842
