"""JSON Schemas of config.yaml, a study and a run spec, generated from the typed classes.

The classes are the truth; the files under workflow/schemas are for editors and other tools, and a
test holds them to the classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clipnoise.data.base import Dataset
from clipnoise.fields import adapter
from clipnoise.methods.registry import methods
from clipnoise.models.base import Model
from clipnoise.plugins import plugins
from clipnoise.privacy.budget import Privacy
from clipnoise.run.spec import REQUIRED, Training
from clipnoise.run.tuning import Tuning
from clipnoise.studies.config import Config
from clipnoise.studies.grid import MATCHES
from clipnoise.studies.scale import ScaleFile
from clipnoise.studies.study import StudyFile
from clipnoise.studies.tuning import Tune

LABEL = {"label": {"type": "string"}}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by the name of its file, without the ending."""
    return {
        "config.schema": _head("config.yaml of clipnoise", _of(Config)),
        "study.schema": _head("A study file of clipnoise", _study()),
        "scale.schema": _head("A scale file of clipnoise", _of(ScaleFile)),
        "run.schema": _head("A run spec of clipnoise", _run()),
    }


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=1) + "\n"


def _of(kind: type[Any]) -> dict[str, Any]:
    return dict(adapter(kind).json_schema())


def _head(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, **schema, "title": title}


def _plugin(identifier: str, kind: type[Any]) -> dict[str, Any]:
    """Return the schema of one plug-in: its fields, and the id that names it."""
    schema = _of(kind)
    properties = {"id": {"const": identifier}, **schema.get("properties", {})}
    required = ["id", *schema.get("required", [])]
    doc = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    return {**schema, "description": doc, "properties": properties, "required": required}


def _either(kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    """Return the schema of a plug-in section: an id alone, or an id with options."""
    return {
        "anyOf": [
            {"enum": sorted(kinds)},
            *(_plugin(identifier, kind) for identifier, kind in kinds.items()),
        ]
    }


def _run() -> dict[str, Any]:
    properties = {
        "dataset": _either(plugins("clipnoise.data", Dataset)),
        "model": _either(plugins("clipnoise.models", Model)),
        "method": {"anyOf": [_plugin(name, kind) for name, kind in methods().items()]},
        "privacy": {"anyOf": [_of(Privacy), {"type": "null"}]},
        "training": _of(Training),
        "seed": {"type": "integer", "minimum": 0},
        "public": {"anyOf": [_either(plugins("clipnoise.data", Dataset)), {"type": "null"}]},
        "tuning": {"anyOf": [_of(Tuning), {"type": "null"}]},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(REQUIRED),
        "additionalProperties": False,
    }


def _study() -> dict[str, Any]:
    """Return a study's schema; datasets, models and methods may carry a label besides."""
    schema = _of(StudyFile)
    schema["$defs"]["Tune"] = _of(Tune)
    panel = schema["$defs"]["Panel"]["properties"]
    panel["datasets"]["items"] = _labelled(_either(plugins("clipnoise.data", Dataset)))
    panel["models"]["items"] = _labelled(_either(plugins("clipnoise.models", Model)))
    panel["public"] = {"anyOf": [panel["datasets"]["items"], {"type": "null"}]}
    panel["methods"]["items"] = {
        "anyOf": [_study_method(name, kind) for name, kind in methods().items()]
    }
    return schema


def _labelled(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a plug-in section whose mappings may carry a label."""
    for option in schema["anyOf"]:
        if "properties" in option:
            option["properties"] = {**option["properties"], **LABEL}
    return schema


def _study_method(identifier: str, kind: type[Any]) -> dict[str, Any]:
    schema = _plugin(identifier, kind)
    own = {name: value for name, value in schema["properties"].items() if name != "id"}
    matches = {name: {"type": ["string", "number"]} for name in MATCHES}
    changed = {**matches, **own, "tune": {"$ref": "#/$defs/Tune"}}
    override = {"type": "object", "properties": changed, "additionalProperties": False}
    extra = {
        **LABEL,
        "overrides": {"type": "array", "items": override},
        "tune": {"$ref": "#/$defs/Tune"},
    }
    return {**schema, "properties": {**schema["properties"], **extra}, "required": ["id"]}
