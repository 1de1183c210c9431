"""JSON Schemas of config.yaml, study files, scale files and run specs, made from the typed classes.

`clipnoise schema` writes them for editors. A plug-in's options are defined once, in the schema of a
study. Its definition allows every key that a plug-in can have anywhere; each place where plug-ins
stand then forbids the keys that do not belong there. Only keywords of draft 7 are used, because
many editors know no `unevaluatedProperties`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from clipnoise.core.method import Method
from clipnoise.data.base import Dataset
from clipnoise.fields import adapter
from clipnoise.methods.base import methods
from clipnoise.models.base import Model
from clipnoise.plugins import plugins
from clipnoise.privacy.budget import Privacy
from clipnoise.run.procedure import Training
from clipnoise.run.spec import REQUIRED, Tuning
from clipnoise.studies.config import Config
from clipnoise.studies.file import SharedFile, StudyFile
from clipnoise.studies.items import item_kinds
from clipnoise.studies.scale import ScaleFile
from clipnoise.studies.tuning import AXES, Tune

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string"}
STUDY_ONLY = ("label", "tune", "sweep", "overrides")

Schema = dict[str, Any]


def schemas() -> dict[str, Schema]:
    """Return every schema by the name of its file."""
    return {
        "config.schema.json": _file("config.yaml", _own(Config), _definitions(Config)),
        "study.schema.json": _study(),
        "shared.schema.json": _file(
            "A shared file",
            {"$ref": "study.schema.json#/$defs/SharedFile"},
            {},
        ),
        "scale.schema.json": _file("A scale file", _own(ScaleFile), _definitions(ScaleFile)),
        "run.schema.json": _run(),
    }


def _file(title: str, root: Schema, definitions: Schema) -> Schema:
    return {"$schema": DIALECT, "title": f"{title} of clipnoise", **root, "$defs": definitions}


def _own(kind: type[Any]) -> Schema:
    """Refer to the definition of a class in the same file."""
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _forbid(names: Iterable[str]) -> Schema:
    return {"properties": dict.fromkeys(names, False)}


def _definitions(*kinds: type[Any]) -> Schema:
    """Return the schemas of some classes, and of the classes of their fields, by class name."""
    adapters: Any = [(kind.__name__, "validation", adapter(kind)) for kind in kinds]
    _, schema = TypeAdapter.json_schemas(adapters)
    definitions: Schema = _plain(schema["$defs"])
    for kind in kinds:
        definitions[kind.__name__]["description"] = kind.__doc__ or ""
    for definition in definitions.values():
        summary = definition.get("description", "").split("\n\n")[0]
        definition["description"] = " ".join(summary.split())
    return definitions


def _plain(node: Any) -> Any:
    """Remove what tells an editor nothing: titles made of field names, OpenAPI's discriminators."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: value if key == "default" else _plain(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and key != "discriminator"
    }


def _study() -> Schema:
    """Return a study's schema; its datasets, models and methods may carry a label, too."""
    datasets, models = plugins("clipnoise.data", Dataset), plugins("clipnoise.models", Model)
    classes = (*datasets.values(), *models.values(), *methods().values())
    definitions = _definitions(StudyFile, SharedFile, Tune, *classes)
    for shown in item_kinds().values():
        required = definitions[shown.__name__].get("required", [])
        definitions[shown.__name__]["required"] = ["kind", *required]
    del definitions["Tune"]["required"]  # `tuning` may give what a `tune` leaves out
    for identifier, kind in {**datasets, **models}.items():
        definition = definitions[kind.__name__]
        own = definition.get("properties", {})
        definition["properties"] = {"id": {"const": identifier}, "label": TEXT, **own}
        definition["required"] = ["id", *definition.get("required", [])]
    for identifier, kind in methods().items():
        _add_method(definitions, identifier, kind)
    for base, kinds in ((Dataset, datasets), (Model, models)):
        either = [{"enum": list(kinds)}, *map(_own, kinds.values())]
        definitions[base.__name__] = {"anyOf": either}
    definitions["Method"] = {"required": ["id"], "anyOf": [*map(_own, methods().values())]}
    definitions["Override"] = _forbid(["id", "label", "sweep", "overrides"])
    definitions["OfEveryMethod"] = _forbid(["id", *AXES])
    each = {identifier: _own(kind) for identifier, kind in methods().items()}
    name = f"({'|'.join(each)})"
    several = {"anyOf": [*each.values()]}
    definitions["Hyperparameters"] = {
        "properties": each,
        "patternProperties": {"": {"$ref": "#/$defs/OfEveryMethod"}, ", ": several},
        "propertyNames": {"pattern": f"^{name}(, {name})*$"},
    }
    definitions["MethodId"] = {"enum": list(methods())}
    bare = {"$ref": "#/$defs/MethodId"}
    method = {"anyOf": [bare, {"allOf": [_own(Method), _forbid(AXES)]}]}
    items = {"datasets": _own(Dataset), "models": _own(Model), "methods": method}
    values = definitions["Panel"]["properties"]
    values |= {key: {"type": "array", "items": item} for key, item in items.items()}
    values["public"] = _nullable(_own(Dataset))
    values["hyperparameters"] = {"$ref": "#/$defs/Hyperparameters"}
    return _file("A study file", _own(StudyFile), definitions)


def _add_method(definitions: Schema, identifier: str, kind: type[Method]) -> None:
    """Complete the definition of a method by all that a study says beside its options."""
    definition = definitions[kind.__name__]
    override = {"allOf": [_own(kind), {"$ref": "#/$defs/Override"}]}
    definition["properties"] = {
        "id": {"const": identifier},
        "label": TEXT,
        "tune": _nullable(_own(Tune)),
        "sweep": {"type": "object", "additionalProperties": {"type": ["array", "object"]}},
        "overrides": {"type": "array", "items": override},
        **{name: {"type": ["string", "number"]} for name in AXES},
        **definition["properties"],
    }
    definition.pop("required", None)  # an override or a search may give what is missing


def _run() -> Schema:
    """Return the schema of a run spec, whose plug-ins are defined in the schema of a study."""

    def plugin(base: type[Any], *conditions: Schema) -> Schema:
        reference = {"$ref": f"study.schema.json#/$defs/{base.__name__}"}
        return {"allOf": [reference, {"$ref": "#/$defs/Resolved"}, *conditions]}

    required: dict[tuple[str, ...], list[str]] = {}
    for identifier, kind in methods().items():
        names = tuple(adapter(kind).json_schema().get("required", ()))
        required.setdefault(names, []).append(identifier)
    complete = [
        {"if": {"properties": {"id": {"enum": identifiers}}}, "then": {"required": list(names)}}
        for names, identifiers in required.items()
    ]
    properties = {
        "dataset": plugin(Dataset),
        "model": plugin(Model),
        "method": plugin(Method, *complete),
        "privacy": _nullable(_own(Privacy)),
        "training": _own(Training),
        "seed": {"type": "integer", "minimum": 0},
        "public": _nullable(plugin(Dataset)),
        "tuning": _nullable(_own(Tuning)),
    }
    root = {
        "type": "object",
        "properties": properties,
        "required": list(REQUIRED),
        "additionalProperties": False,
    }
    definitions = {"Resolved": _forbid([*STUDY_ONLY, *AXES])}
    return _file("A run spec", root, definitions | _definitions(Privacy, Training, Tuning))
