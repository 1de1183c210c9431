"""Side information: counted in public text, spread over parameters, recorded, refused if not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_files import small, write_raw

from clipnoise.data.base import Dataset, TokenCounts
from clipnoise.data.side_information import TfIdf, TokenFrequency
from clipnoise.data.synthetic import SyntheticSparse, SyntheticZipf
from clipnoise.errors import UserError
from clipnoise.run.spec import from_mapping, to_mapping
from clipnoise.run.train import Run

SPARSE: dict[str, Any] = {"id": "synthetic-sparse", "examples": 120, "features": 40, "tags": 4}
SPEC: dict[str, Any] = {
    "dataset": {**SPARSE, "target": "tag"},
    "model": "logistic",
    "method": {"id": "adadps-side", "learning_rate": 0.1, "clip_norm": 1, "gamma": 0.01},
    "privacy": {"noise_multiplier": 1},
    "training": {"expected_batch_size": 20, "steps": 2},
    "seed": 1,
}


def prepared(source: dict[str, Any] | None, cache: Path, **changes: Any) -> Run:
    own = {} if source is None else {"side_information": source}
    return Run.prepare(
        from_mapping(SPEC | changes | {"method": SPEC["method"] | own}), cache, "cpu"
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    SyntheticSparse(examples=120, features=40, tags=4).prepare(folder)
    SyntheticZipf().prepare(folder)
    return folder


# What is counted


def test_frequencies_and_inverse_tf_idf_by_hand() -> None:
    counts = TokenCounts(np.array([8, 4, 2, 0]), np.array([4, 2, 1, 0]), 4)
    assert TokenFrequency().of(counts).tolist() == [8, 4, 2, 2]  # what never occurs is rare
    scores = [4 * np.log(2), 2 * np.log(4)]
    inverse = [1 / min(scores), 1 / scores[0], 1 / scores[1], 1 / min(scores)]
    np.testing.assert_allclose(TfIdf().of(counts), inverse)


def test_the_published_reviews_without_labels_are_counted_and_no_others(tmp_path: Path) -> None:
    bags = small("imdb-bow")
    write_raw(tmp_path, "imdb-bow")
    bags.prepare(tmp_path)
    counts = bags.token_counts(tmp_path)
    assert counts.texts == 60  # unlabelled ones in the files of the test
    assert bags.counted_in() == "IMDB's 50,000 unlabelled reviews"
    assert (np.diff(counts.occurrences) <= 0).all()  # the vocabulary is in this order
    assert (counts.texts_with <= counts.occurrences).all()
    words = small("imdb-words")
    words.prepare(tmp_path)
    ids = words.token_counts(tmp_path)
    np.testing.assert_array_equal(ids.occurrences[2:], counts.occurrences[:38])
    assert ids.occurrences[0] == 0  # padding
    assert ids.occurrences.sum() == counts.occurrences.sum() + (
        ids.occurrences[1] - counts.occurrences[38:].sum()
    )


def test_sentences_of_held_out_users_are_counted(tmp_path: Path) -> None:
    data = small("stackoverflow")
    write_raw(tmp_path, "stackoverflow")
    data.prepare(tmp_path)
    counts = data.token_counts(tmp_path)
    assert counts.texts == 4 * 15  # held-out users, each with 15 sentences
    assert (np.diff(counts.occurrences) <= 0).all()
    assert "hold" in str(data.counted_in())


def test_drawn_texts_are_counted_as_they_are_distributed(cache: Path) -> None:
    zipf = SyntheticZipf()
    occurrences = zipf.token_counts(cache).occurrences
    assert occurrences[0] == 0
    common = occurrences[1:100] / occurrences[1:100].sum()
    law = 1 / np.arange(1, 100)
    assert np.abs(common - law / law.sum()).max() < 0.01


def test_counts_are_not_of_the_private_examples(cache: Path) -> None:
    data = SyntheticSparse(examples=120, features=40, tags=4)
    private = data.load(cache).train.dense().inputs
    counts = data.token_counts(cache)
    assert counts.texts != len(private)
    assert counts.texts_with.tolist() != (private > 0).sum(0).tolist()


@pytest.mark.parametrize(
    "dataset",
    [
        small("imdb-bow", counted="private"),
        small("imdb-words", counted="private"),
        small("stackoverflow", counted="published"),
    ],
    ids=lambda data: data.id,
)
def test_counts_over_private_examples_are_refused(dataset: Dataset) -> None:
    for source in (TokenFrequency(), TfIdf()):
        with pytest.raises(UserError, match="no noise covers"):
            source.check(dataset)


def test_a_dataset_without_public_text_is_refused_before_training() -> None:
    with pytest.raises(UserError, match="source: tokens are counted in public text, and for dig"):
        from_mapping(SPEC | {"dataset": "digits"})


def test_a_cache_from_before_there_were_counts_says_how_to_prepare_again(tmp_path: Path) -> None:
    data = SyntheticSparse(examples=120, features=40, tags=4)
    data.write(tmp_path, {})
    with pytest.raises(UserError, match="clipnoise data prepare synthetic-sparse"):
        data.token_counts(tmp_path)


# What a run makes of it


def test_no_public_example_is_needed_and_the_result_says_what_was_counted_where(
    cache: Path,
) -> None:
    run = prepared(None, cache)
    assert run.splits.public is None
    provenance = run.provenance()
    assert provenance["side information"] == (
        "token frequencies relative to the largest, counted in 1,000 further texts, drawn for that "
        "alone"
    )
    assert len(provenance["sha256 of side information"]) == 64
    other = prepared({"source": "tf-idf"}, cache).provenance()
    assert other["sha256 of side information"] != provenance["sha256 of side information"]


def test_of_a_linear_model_each_column_is_divided_and_the_bias_is_left(cache: Path) -> None:
    run = prepared({"source": "token-frequency"}, cache)
    counts = SyntheticSparse(examples=120, features=40, tags=4).token_counts(cache)
    sizes = torch.from_numpy(TokenFrequency().of(counts)).float()
    assert run.known.side_information is not None
    weight, bias = run.engine.flat.split(run.known.side_information)
    torch.testing.assert_close(weight, (sizes / sizes.max()).expand(4, 40))
    assert bias.tolist() == [1, 1, 1, 1]
    assert float(weight.max()) == 1


def test_of_an_embedding_each_row_is_divided_except_that_of_padding(cache: Path) -> None:
    data = {"id": "synthetic-zipf", "examples": 60, "length": 8}
    run = prepared(None, cache, dataset=data, model={"id": "lstm", "width": 4})
    assert run.known.side_information is not None
    views = run.engine.flat.views(run.known.side_information)
    rows = next(view for view in views.values() if view.shape == (1000, 4))
    assert (rows == rows[:, :1]).all()
    assert rows[0, 0] == 1
    assert rows[1, 0] == 1  # the most frequent token
    assert rows[2:, 0].max() < 1
    others = torch.cat([view.reshape(-1) for view in views.values() if view.shape != (1000, 4)])
    assert (others == 1).all()


def test_a_step_clips_gradients_divided_by_what_was_counted(cache: Path) -> None:
    run = prepared(None, cache)
    before = run.state.theta.clone()
    gradients = run.engine.per_example_gradients(*run.splits.train.take(slice(6)), before)
    run.step(torch.arange(6))
    scaled = gradients / (run.known.side_information + 0.01)
    clipped = scaled * (1 / scaled.norm(dim=1, keepdim=True)).clamp(max=1)
    torch.testing.assert_close(run.state.theta, before - 0.1 * clipped.sum(0) / 20)


def test_a_vector_from_a_file_is_used_as_it_is(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "known.npy"
    np.save(path, np.arange(40.0))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    run = prepared({"source": "file", "path": str(path), "sha256": digest}, cache)
    assert run.known.side_information is not None
    weight, _ = run.engine.flat.split(run.known.side_information)
    assert weight[0].tolist() == list(range(40))
    assert run.provenance()["side information"] == f"the file {path}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(39.0), "39 numbers, but it takes one for each of the 164 parameters, or"),
        (np.array([np.nan] * 40), "must be finite"),
        (-np.ones(40), "none may be negative"),
        (np.ones((4, 10)), "expected numbers of shape"),
        (np.array(["one"] * 40), "expected numbers of shape"),
    ],
    ids=["length", "nan", "negative", "shape", "words"],
)
def test_a_file_that_does_not_fit_is_refused(
    values: np.ndarray, message: str, cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / "known.npy"
    np.save(path, values)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(UserError, match=message):
        prepared({"source": "file", "path": str(path), "sha256": digest}, cache)


def test_a_file_with_other_content_than_named_is_refused(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "known.npy"
    for content in (b"", None):
        if content is None:
            np.save(path, np.ones(40))
        else:
            path.write_bytes(content)
        with pytest.raises(UserError, match=r"known\.npy"):
            prepared({"source": "file", "path": str(path), "sha256": "0" * 64}, cache)


def test_public_gradients_need_public_examples(cache: Path) -> None:
    with pytest.raises(UserError, match="adadps-side needs public examples"):
        prepared({"source": "public-gradients"}, cache)
    data = {**SPARSE, "target": "tag", "public_examples": 20}
    run = prepared({"source": "public-gradients"}, cache, dataset=data)
    theta = run.state.theta
    assert run.splits.public is not None
    public = run.splits.public.dense()
    gradients = run.engine.per_example_gradients(public.inputs, public.targets, theta)
    assert run.known.side_information is not None
    torch.testing.assert_close(run.known.side_information, gradients.square().mean(0).sqrt())


def test_the_source_is_part_of_a_run_s_identity_and_a_misspelt_one_is_named() -> None:
    both = [
        from_mapping(SPEC | {"method": SPEC["method"] | {"side_information": {"source": source}}})
        for source in ("token-frequency", "tf-idf")
    ]
    assert both[0].hash == from_mapping(SPEC).hash != both[1].hash
    assert from_mapping(to_mapping(both[1])) == both[1]
    for source, message in (
        ({"source": "tfidf"}, r"side_information\.source: 'tfidf'\. Did you mean 'tf-idf'\?"),
        ({"source": "file", "paht": "x"}, "Did you mean 'path'"),
        ({}, "give its 'source'"),
    ):
        with pytest.raises(UserError, match=message):
            from_mapping(SPEC | {"method": SPEC["method"] | {"side_information": source}})


@pytest.mark.parametrize("name", ["adadps-side", "adadps-fed", "dp-sgd"])
def test_a_result_says_how_much_its_scale_varies(name: str, tmp_path: Path) -> None:
    data = {**SPARSE, "target": "tag", "users": 12}
    SyntheticSparse(examples=120, features=40, tags=4, users=12).prepare(tmp_path)
    spreads = []
    for gamma in (1e-4, 1e3):
        own = {} if name == "dp-sgd" else {"gamma": gamma}
        method = {"id": name, "learning_rate": 0.1, "clip_norm": 1, **own}
        training = {"expected_batch_size": 4, "steps": 1}
        spec = from_mapping(SPEC | {"dataset": data, "method": method, "training": training})
        run = Run.prepare(spec, tmp_path, "cpu")
        run.step(torch.arange(3))
        spreads.append(run.scale_spread())
    if name == "dp-sgd":
        assert spreads == [None, None]
    else:
        assert spreads[0] is not None
        assert spreads[0] > 10  # the rarest word and the most frequent one
        assert spreads[1] == pytest.approx(1, abs=1e-2)  # where γ is far above A it is DP-SGD


@pytest.mark.parametrize(("features", "tags", "rank"), [(12, 2, 1), (75, 4, 3)])
def test_the_spread_of_a_scale_leaves_one_percent_out_at_either_end(
    features: int, tags: int, rank: int, tmp_path: Path
) -> None:
    data = {**SPARSE, "target": "tag", "features": features, "tags": tags}
    SyntheticSparse(examples=120, features=features, tags=tags).prepare(tmp_path)
    method = {"id": "adadps-side", "learning_rate": 0.1, "clip_norm": 1, "gamma": 1e-4}
    training = {"expected_batch_size": 4, "steps": 1}
    spec = from_mapping(SPEC | {"dataset": data, "method": method, "training": training})
    run = Run.prepare(spec, tmp_path, "cpu")
    run.step(torch.arange(3))
    assert run.scale is not None
    ordered = run.scale.sort().values
    assert run.scale_spread() == pytest.approx(float(ordered[-rank] / ordered[rank - 1]))
