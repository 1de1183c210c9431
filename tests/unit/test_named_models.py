"""Networks of transformers and timm, by name, from folders that these libraries have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from web_server import Site, serve

from clipnoise.cli import main
from clipnoise.data import remote
from clipnoise.data.base import DenseExamples
from clipnoise.data.own import Own
from clipnoise.data.remote import digest
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.models import pretrained
from clipnoise.models.hub import HuggingFace, Timm
from clipnoise.models.language import TinyBert
from clipnoise.run.job import is_finished, run_job
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.studies.plan import Plan

TEXTS = Signature("tokens", (12,), 3, vocabulary=50)
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,  # not four times the width
    "max_position_embeddings": 64,
}
DISTIL = {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": {**SIZES, "pad_token_id": 1},
    "electra": {**SIZES, "embedding_size": 8},
    "distilbert": DISTIL,
}


def save(weights: Path, family: str, name: str = "mine", **options: Any) -> dict[str, Any]:
    """Write a small encoder as transformers does; return its tensors."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**FAMILIES[family], **options})
    network = transformers.AutoModel.from_config(config)
    network.save_pretrained(weights / name)
    return dict(network.state_dict())


def model(weights: Path, name: str = "mine", **options: Any) -> HuggingFace:
    return HuggingFace(
        name=name, sha256=digest(weights / name / "model.safetensors", "sha256"), **options
    )


def examples() -> torch.Tensor:
    draws = torch.randint(2, 50, (5, 12), generator=torch.Generator().manual_seed(0))
    return draws * (torch.arange(12) < torch.tensor([12, 7, 9, 1, 12])[:, None])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_of_transformers_keeps_its_weights_and_gets_a_head(
    family: str, tmp_path: Path
) -> None:
    saved = save(tmp_path, family)
    network: Any = model(tmp_path).build(TEXTS, tmp_path)
    loaded = network.inside.base_model.state_dict()
    same = [name for name in saved if torch.equal(saved[name], loaded.get(name, torch.zeros(0)))]
    assert set(saved) - set(same) <= {"pooler.dense.weight", "pooler.dense.bias"}
    assert network(examples()).shape == (5, 3)
    longer = torch.cat([examples(), torch.zeros(5, 8, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(network(longer), network(examples()))


@pytest.mark.parametrize("family", FAMILIES)
def test_its_examples_do_not_mix_and_its_gradients_are_factored(
    family: str, tmp_path: Path
) -> None:
    save(tmp_path, family)
    torch.manual_seed(1)
    network = model(tmp_path).build(TEXTS, tmp_path)
    torch.manual_seed(1)
    same = model(tmp_path).build(TEXTS, tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), same.parameters(), strict=True)
    )
    check_model(network, examples()[:1])
    data = DenseExamples(examples(), torch.arange(5) % 3)
    assert choose_engine(network.train(), TEXTS.task.losses, data).name == "factored"


def test_only_the_head_may_train(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    network = model(tmp_path, train="head").build(TEXTS, tmp_path)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert trained == {"inside.classifier.weight", "inside.classifier.bias"}


def test_other_weights_are_another_run_and_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    one, other = model(tmp_path), HuggingFace(name="mine", sha256="0" * 64)
    runs = {spec({"id": "huggingface", "name": "mine", "sha256": m.sha256}).hash
            for m in (one, other)}  # fmt: skip
    assert len(runs) == 2
    with pytest.raises(UserError, match=f"its sha256 is {one.sha256}, but model.sha256 is 000"):
        other.build(TEXTS, tmp_path)


def test_faults_of_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist: no usable weights of mine"):
        HuggingFace(name="mine", sha256="0" * 64).build(TEXTS, tmp_path)
    save(tmp_path, "bert")
    few = Signature("tokens", (12,), 3, vocabulary=51)
    with pytest.raises(UserError, match="mine has 50 token ids, but the dataset has 51"):
        model(tmp_path).build(few, tmp_path)
    long = Signature("tokens", (65,), 3, vocabulary=50)
    with pytest.raises(UserError, match=r"mine takes no inputs of shape \(65,\)"):
        model(tmp_path).build(long, tmp_path)
    path = tmp_path / "mine" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"no usable tensor bert\.encoder\.layer\.2.*and \d+ more"):
        model(tmp_path).build(TEXTS, tmp_path)
    path.write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(UserError, match="model_type 'gpt2' is no encoder"):
        model(tmp_path).build(TEXTS, tmp_path)
    with pytest.raises(UserError, match="name must be a folder"):
        parse(HuggingFace, {"name": "../mine", "sha256": "0" * 64})
    with pytest.raises(UserError, match="sha256"):
        parse(HuggingFace, {"name": "mine", "sha256": "abc"})


IMAGES = Signature("image", (3, 32, 32), 10)


def save_timm(weights: Path, name: str = "test_vit") -> dict[str, torch.Tensor]:
    import timm

    torch.manual_seed(3)
    tensors = {key: torch.randn_like(x) for key, x in timm.create_model(name).state_dict().items()}
    folder = weights / "timm" / name
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet_ln"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_of_timm_takes_these_images(name: str, channels: int, tmp_path: Path) -> None:
    images = Signature("image", (channels, 32, 32), 10)
    network = Timm(name=name).build(images, tmp_path)
    inputs = torch.rand(3, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    check_model(network, inputs[:1])
    data = DenseExamples(inputs, torch.arange(3))
    assert choose_engine(network.train(), images.task.losses, data).name == "factored"


def test_a_network_of_timm_starts_from_the_weights_of_a_folder(tmp_path: Path) -> None:
    saved = save_timm(tmp_path, "test_efficientnet_ln")
    sha256 = digest(tmp_path / "timm" / "test_efficientnet_ln" / "model.safetensors", "sha256")
    network = Timm(name="test_efficientnet_ln", sha256=sha256).build(IMAGES, tmp_path)
    new = {name for name, p in network.named_parameters() if not torch.equal(p, saved[name])}
    assert new == {"classifier.weight", "classifier.bias"}
    with pytest.raises(UserError, match=f"its sha256 is {sha256}"):
        Timm(name="test_efficientnet_ln", sha256="0" * 64).build(IMAGES, tmp_path)


def test_missing_weights_of_timm_are_to_be_fetched_into_the_folder_of_all_weights(
    tmp_path: Path,
) -> None:
    model = Timm(name="test_vit2", sha256="0" * 64)
    with pytest.raises(UserError, match="does not exist") as caught:
        model.build(IMAGES, tmp_path)
    assert f"clipnoise weights fetch timm/test_vit2 --weights {tmp_path} " in str(caught.value)


def test_faults_of_a_network_of_timm_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"timm has no 'test_vitt'\. Did you mean 'test_vit"):
        Timm(name="test_vitt").build(IMAGES, tmp_path)
    with pytest.raises(UserError, match=r"test_vit.* shape|cannot build test_vit"):
        Timm(name="test_vit").build(Signature("image", (3, 8, 8), 10), tmp_path)
    with pytest.raises(UserError, match="BatchNorm2d: its statistics mix the examples"):
        check_model(Timm(name="test_resnet").build(IMAGES, tmp_path), torch.rand(1, 3, 32, 32))
    save_timm(tmp_path, "test_vit")
    (tmp_path / "timm" / "test_vit").rename(tmp_path / "timm" / "test_vit2")
    sha256 = digest(tmp_path / "timm" / "test_vit2" / "model.safetensors", "sha256")
    with pytest.raises(UserError, match="test_vit2"):
        Timm(name="test_vit2", sha256=sha256).build(IMAGES, tmp_path)


DATA = {"id": "own", "name": "mails", "inputs": ["x"], "target": "y", "kind": "tokens"} | {
    "shape": [12], "vocabulary": 50, "training_file": 40, "test_file": 10, "validation_examples": 5
}  # fmt: skip


def spec(network: dict[str, Any]) -> RunSpec:
    return from_mapping(
        {
            "dataset": DATA,
            "model": network,
            "method": {"id": "sgd", "learning_rate": 0.1},
            "privacy": None,
            "training": {"expected_batch_size": 10, "steps": 2},
            "seed": 1,
        }
    )


def write_tokens(cache: Path) -> None:
    import numpy as np

    folder = cache / "raw" / "mails"
    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for part, count in (("train", 40), ("test", 10)):
        tokens = draws.integers(2, 50, (count, 12))
        np.savez(folder / f"{part}.npz", x=tokens, y=np.arange(count) % 2)
    dataset = parse(Own, {name: value for name, value in DATA.items() if name != "id"})
    dataset.prepare(cache)


def test_a_run_records_the_checksum_of_its_weights_and_is_repeated_with_others(
    tmp_path: Path,
) -> None:
    write_tokens(tmp_path)
    weights = tmp_path / "weights"
    save(weights, "bert", "tiny-bert", intermediate_size=64, pad_token_id=0,
         max_position_embeddings=512)  # fmt: skip
    sizes = {"layers": 2, "width": 16, "heads": 2}
    run = spec({"id": "tiny-bert", **sizes})
    places = {"results": tmp_path / "results", "cache": tmp_path}
    summary = run_job(run, None, **places, weights=weights, device="cpu")
    file = weights / "tiny-bert" / "model.safetensors"
    assert summary["data"]["sha256 of weights"] == digest(file, "sha256")
    assert is_finished(**places, spec=run, weights=weights)
    save(weights, "bert", "tiny-bert", intermediate_size=64, max_position_embeddings=512,
         initializer_range=0.5)  # fmt: skip
    assert not is_finished(**places, spec=run, weights=weights)
    pinned = spec({"id": "tiny-bert", **sizes, "sha256": "0" * 64})
    assert pinned.hash != run.hash
    with pytest.raises(UserError, match=r"but model\.sha256 is 000"):
        run_job(pinned, None, **places, weights=weights, device="cpu")


def test_a_run_is_planned_again_when_the_weights_of_its_model_change(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    study = {
        "title": "Mails",
        "panels": {
            "main": {
                "datasets": [DATA],
                "models": [{"id": "tiny-bert", "layers": 2, "width": 16, "heads": 2}, "lstm"],
                "methods": [{"id": "sgd", "learning_rate": 0.1}],
                "seeds": [1],
                "training": {"expected_batch_size": 10, "steps": 2},
            }
        },
        "report": [],
    }
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mails.yaml").write_text(yaml.safe_dump(study))

    def planned() -> dict[str, str]:
        values = {"studies": ["mails"], "weights": str(weights)}
        plan = Plan.from_values(values, tmp_path / "studies")
        runs = [run.spec for run in plan.study("mails").runs]
        return {run.model.id: plan.fingerprint(run.hash) for run in runs}

    without = planned()
    save(weights, "bert", "tiny-bert", intermediate_size=64)
    first = planned()
    save(weights, "bert", "tiny-bert", intermediate_size=64, initializer_range=0.5)
    second = planned()
    assert without["lstm"] == first["lstm"] == second["lstm"]
    assert len({without["tiny-bert"], first["tiny-bert"], second["tiny-bert"]}) == 3


def test_a_run_trains_a_model_that_a_folder_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokens(tmp_path)
    weights = tmp_path / "weights"
    save(weights, "distilbert")
    assert main(["weights", "describe", "mine", "--weights", str(weights)]) == 0
    (block,) = yaml.safe_load(capsys.readouterr().out)["models"]
    assert (block["id"], block["name"]) == ("huggingface", "mine")
    places = {"results": tmp_path / "results", "cache": tmp_path, "weights": weights}
    summary = run_job(spec(block), None, **places, device="cpu")
    assert summary["status"] == "completed"
    assert summary["spec"]["model"]["sha256"] == summary["data"]["sha256 of weights"]


def test_weights_are_described_by_id_and_by_the_name_of_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_timm(tmp_path)
    save(tmp_path, "bert", "tiny-bert")
    for name, expected in (
        ("timm/test_vit", {"id": "timm", "name": "test_vit"}),
        ("tiny-bert", {"id": "tiny-bert"}),
    ):
        assert main(["weights", "describe", name, "--weights", str(tmp_path)]) == 0
        (block,) = yaml.safe_load(capsys.readouterr().out)["models"]
        assert block.pop("sha256") == digest(tmp_path / name / "model.safetensors", "sha256")
        assert block == expected
    assert main(["weights", "describe", "other", "--weights", str(tmp_path)]) == 2
    assert "other: no model.safetensors or pytorch_model.bin there" in capsys.readouterr().err


def test_accepted_weights_are_those_that_training_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TinyBERT is published as pytorch_model.bin and vocab.txt; other forms are read, too."""
    save(tmp_path, "bert", "tiny-bert")
    folder = tmp_path / "tiny-bert"
    (folder / "tokenizer.json").write_text("{}")
    words = ["--weights", str(tmp_path)]
    assert main(["weights", "accept", "tiny-bert", *words]) == 0
    recorded = json.loads((folder / "checksums.json").read_text())
    assert set(recorded) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert TinyBert().tensors(tmp_path) == folder / "model.safetensors"
    assert main(["weights", "verify", "tiny-bert", *words]) == 0
    (folder / "model.safetensors").write_bytes(b"another")
    assert main(["weights", "verify", "tiny-bert", *words]) == 2
    capsys.readouterr()
    assert main(["weights", "accept", "tiny-bert", *words]) == 0


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serve a hub with a model of texts and one of timm."""
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    names = {"me/mine": ("config.json", "model.safetensors", "tokenizer.json")}
    names["timm/test_vit"] = ("config.json", "model.safetensors")
    site = Site(
        {f"/{repo}/resolve/main/{name}": name.encode() for repo in names for name in names[repo]}
    )
    server = serve(site)
    monkeypatch.setattr(pretrained, "HUB", site.address)
    yield site
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["me/mine", "timm/test_vit"])
def test_any_model_of_the_hub_is_fetched_by_its_name(
    name: str, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "fetch", name, "--weights", str(tmp_path)]) == 0
    there = {path.name for path in (tmp_path / name).glob("[!.]*")}
    texts = set() if name.startswith("timm") else {"tokenizer.json"}
    assert there == {"config.json", "model.safetensors", "checksums.json"} | texts
    assert main(["weights", "verify", name, "--weights", str(tmp_path)]) == 0
    assert main(["weights", "fetch", "../mine", "--weights", str(tmp_path)]) == 2
    assert "leads out of" in capsys.readouterr().err
