"""GLUE and SNLI: sentences and pairs of sentences for a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clipnoise.data.labelled import Parts, TokenisedTexts, hub_files, one_file_each
from clipnoise.data.remote import RemoteFile
from clipnoise.fields import Natural

GLUE = "A. Wang et al., GLUE, ICLR 2019; nyu-mll/glue on the Hugging Face hub"


@dataclass(frozen=True, kw_only=True)
class Glue(TokenisedTexts):
    """Base of the tasks of GLUE: two classes, tested on the published validation set."""

    split: ClassVar[str] = (
        "GLUE's test labels are not published: its validation set is the test set, as in the "
        "papers; validation and public from the training file"
    )
    classes: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class Sst2(Glue):
    """SST-2: is a phrase of a film review positive?"""

    id: ClassVar[str] = "sst2"
    title: ClassVar[str] = "SST-2"
    licence: ClassVar[str] = "not stated by its authors"
    source: ClassVar[str] = f"R. Socher et al., EMNLP 2013; {GLUE}"
    columns: ClassVar[tuple[str, ...]] = ("sentence",)
    parts: ClassVar[Parts] = one_file_each("sst2", train="train", test="validation")
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("nyu-mll/glue", parts)
    training_file: ClassVar[int] = 67_349
    test_file: ClassVar[int] = 872


@dataclass(frozen=True, kw_only=True)
class Qnli(Glue):
    """QNLI: does a sentence answer a question?"""

    id: ClassVar[str] = "qnli"
    title: ClassVar[str] = "QNLI"
    licence: ClassVar[str] = "CC BY-SA 4.0 (SQuAD)"
    source: ClassVar[str] = f"P. Rajpurkar et al., EMNLP 2016; {GLUE}"
    columns: ClassVar[tuple[str, ...]] = ("question", "sentence")
    parts: ClassVar[Parts] = one_file_each("qnli", train="train", test="validation")
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("nyu-mll/glue", parts)
    training_file: ClassVar[int] = 104_743
    test_file: ClassVar[int] = 5_463


@dataclass(frozen=True, kw_only=True)
class Qqp(Glue):
    """QQP: do two questions ask the same thing?"""

    id: ClassVar[str] = "qqp"
    title: ClassVar[str] = "QQP"
    licence: ClassVar[str] = "Quora's terms of use: non-commercial"
    source: ClassVar[str] = f"S. Iyer et al., First Quora Dataset Release, 2017; {GLUE}"
    columns: ClassVar[tuple[str, ...]] = ("question1", "question2")
    parts: ClassVar[Parts] = one_file_each("qqp", train="train", test="validation")
    files: ClassVar[tuple[RemoteFile, ...]] = hub_files("nyu-mll/glue", parts)
    training_file: ClassVar[int] = 363_846
    test_file: ClassVar[int] = 40_430


@dataclass(frozen=True, kw_only=True)
class Mnli(Glue):
    """MNLI: does a sentence follow from another, contradict it, or neither?

    Attributes:
        genres: whether the test sentences match the genres of the training sentences.
    """

    id: ClassVar[str] = "mnli"
    title: ClassVar[str] = "MNLI"
    licence: ClassVar[str] = "by genre: OANC, CC BY 3.0, CC BY-SA 3.0, public domain"
    source: ClassVar[str] = f"A. Williams, N. Nangia, S. Bowman, NAACL 2018; {GLUE}"
    split: ClassVar[str] = f"{Glue.split}; two test sets, matched and mismatched"
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

    Rows without a label, on which the annotators disagreed, are left out.
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
