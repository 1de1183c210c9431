"""Every model, in a size that trains within seconds."""

from __future__ import annotations

from typing import Any

from clipnoise.fields import parse
from clipnoise.models.base import Model
from clipnoise.plugins import plugins

NAMED = ("huggingface", "timm")  # they have tests of their own: test_named_models.py
MODELS = {
    name: kind for name, kind in plugins("clipnoise.models", Model).items() if name not in NAMED
}
ENCODER = {"pretrained": False, "layers": 2, "width": 8, "heads": 2, "dropout": 0.0}
TINY: dict[str, dict[str, Any]] = {
    "autoencoder": {"widths": [20, 5]},
    "bert-base": ENCODER,
    "bert-large": ENCODER,
    "cnn-5-released": {"width": 16},
    "lstm": {"width": 8, "dropout": 0.0},
    "resnet-18": {"blocks": [1, 1, 1, 1], "width": 8, "groups": 4},
    "roberta-base": ENCODER,
    "tiny-bert": ENCODER,
    "vit": {"width": 16, "layers": 2, "heads": 2},
}


def tiny(model: str) -> Model:
    """Build a model that is as small as it can be."""
    return parse(MODELS[model], TINY.get(model, {}))
