"""NewPlugin is prepared and loaded as it says."""

from __future__ import annotations

from pathlib import Path

from clipnoise.data.base import dataset_class


def test_what_is_loaded_is_what_is_declared(tmp_path: Path) -> None:
    dataset = dataset_class("new-plugin")()
    dataset.prepare(tmp_path)
    splits = dataset.load(tmp_path)
    sizes = dataset.sizes()
    for part in ("train", "validation", "test"):
        examples = getattr(splits, part).dense()
        assert len(examples) == sizes[part]
        assert examples.inputs.shape[1:] == dataset.signature.shape
        assert 0 <= examples.targets.min() <= examples.targets.max() < dataset.signature.outputs
