"""The JSON schema of a study file, so that editors complete and check its keys while it is written.

Made from the pydantic models, the trial's configuration and the list of metrics. Setting up and `new-study` write it
to ``studies/study.schema.json``, where the first line of the shipped studies looks for it; so does
``python -m studies.definition.editor_schema``. It refuses no valid file; what it lets through, reading the file finds.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.effects import needs, value_at
from pipeline.config.loading import MAPPINGS, dotted_keys, load_config, profile_names
from pipeline.config.presets import NAME, SHORT
from pipeline.config.trial import TrialConfig
from pipeline.run.layout import SAFE_NAME
from pipeline.run.metrics import FAMILIES, METRICS
from studies.definition.fields import FIXED
from studies.definition.schema import DERIVED, KINDS, STUDIES, Study

SCHEMA = STUDIES / "study.schema.json"
PROFILES_SHOWN = ("tiny", "t4")
_OVERRIDES = "#/$defs/Overrides"


def header(path: Path) -> str:
    """The comment by which an editor finds the schema, for a study file at `path`."""
    where = SCHEMA.name if path.parent == SCHEMA.parent else str(SCHEMA)
    return f"# yaml-language-server: $schema={where}"


def write_schema() -> None:
    """Write ``study.schema.json`` as the program is now; without a word where its folder cannot be written."""
    with suppress(OSError):
        SCHEMA.write_text(json.dumps(study_schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def study_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a study file."""
    schema: dict[str, Any] = Study.model_json_schema(by_alias=True)
    parts, fields = schema["$defs"], schema["properties"]
    for name in DERIVED:
        del fields[name]
    schema["required"].remove("name")
    schema["oneOf"] = [{"required": [kind]} for kind in KINDS]
    fields["profile"]["enum"] = profile_names()
    knobs: dict[str, Any] = {}
    for key in dotted_keys():
        if key not in FIXED:
            knob, own = _knob(key)
            parts |= own
            knobs[key] = _with_values(key, knob)
    knobs |= {SHORT: knobs[NAME]}
    parts["Overrides"] = _of_knobs(knobs, {})
    arms = _object_of(fields["arms"])
    arms |= {"propertyNames": {"pattern": f"^{SAFE_NAME.pattern}$"}, "additionalProperties": {"$ref": _OVERRIDES}}
    some: dict[str, Any] = {"type": "array", "minItems": 1}
    items = {key: {**some, "items": {"$ref": f"{_OVERRIDES}/properties/{key}"}} for key in knobs}
    for kind in ("grid", "factors"):
        _object_of(fields[kind]).update(_of_knobs(items, some))
    dimension = {"$ref": "#/$defs/Dimension"}
    parts["Search"]["properties"]["space"].update(_of_knobs(dict.fromkeys(knobs, dimension), dimension))
    parts["Metric"] = _metric()
    for part in ("Objective", "Constraint", "Hypothesis", "Falsifier"):
        parts[part]["properties"]["metric"]["$ref"] = "#/$defs/Metric"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _knob(key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a knob, and the definitions that it refers to."""
    model: Any = TrialConfig
    *sections, name = key.split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    schema = model.model_json_schema()
    return schema["properties"][name], schema.get("$defs", {})


def _with_values(key: str, knob: dict[str, Any]) -> dict[str, Any]:
    """Add to a knob's description the settings it needs to act, and its values in some profiles."""
    values = ", ".join(
        f"{profile} {json.dumps(value_at(load_config(profile).model_dump(mode='json'), key))}"
        for profile in PROFILES_SHOWN
    )
    required = needs(TrialConfig, key)
    only = f"; acts only with {required}" if required else ""
    return {**knob, "description": f"{knob['description']}{only} ({values})"}


def _of_knobs(properties: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """A mapping of these keys and no others but single entries of mappings, whose names are the user's."""
    inside = {f"^{re.escape(name)}\\.": value for name in MAPPINGS}
    return {"type": "object", "properties": properties, "patternProperties": inside, "additionalProperties": False}


def _object_of(field: dict[str, Any]) -> dict[str, Any]:
    """The mapping in a field that may be left out."""
    found: dict[str, Any] = next(one for one in field["anyOf"] if one.get("type") == "object")
    return found


def _metric() -> dict[str, Any]:
    words = {metric.key: f"{metric.unit}: {metric.formula}" for metric in METRICS.values()}
    listed = {"enum": [*words], "enumDescriptions": [*words.values()]}
    families = [
        {"pattern": f"^{one.key.partition('<')[0]}", "description": f"{one.unit}: {one.formula}"} for one in FAMILIES
    ]
    return {"type": "string", "anyOf": [listed, *families]}


if __name__ == "__main__":
    write_schema()
