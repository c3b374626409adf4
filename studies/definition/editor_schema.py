"""The JSON schema of a study file, so that editors complete and check its keys while it is written.

Made from the pydantic models, the trial's configuration and the list of metrics. Setting up and `new-study` write it
to ``studies/study.schema.json``, where the first line of the shipped studies looks for it; so does
``python -m studies.definition.editor_schema``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.base import Section
from pipeline.config.effects import needs
from pipeline.config.loading import MAPPINGS, load_config, profile_names
from pipeline.config.presets import NAME, SHORT
from pipeline.config.rewards import JudgeConfig, RewardConfig
from pipeline.config.trial import TrialConfig
from pipeline.run.layout import SAFE_NAME
from pipeline.run.metrics import FAMILIES, METRICS
from studies.definition.replicates import SEED_KEY
from studies.definition.schema import DERIVED, KINDS, STOP_KEY, STUDIES, Study

SCHEMA = STUDIES / "study.schema.json"
PROFILES_SHOWN = ("tiny", "t4")


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
    schema: dict[str, Any] = _plain(Study.model_json_schema(by_alias=True))
    parts, knobs = schema["$defs"], dict(_knobs())
    for name in DERIVED:
        del schema["properties"][name]
    schema["required"].remove("name")
    overrides = {"type": "object", "description": "what this arm changes", "properties": knobs, **_inside({})}
    schema["properties"]["arms"] |= {
        "propertyNames": {"pattern": f"^{SAFE_NAME.pattern}$"},
        "additionalProperties": {"$ref": "#/$defs/Overrides"},
    }
    for kind in ("grid", "factors"):
        listed = {
            key: {"type": "array", "minItems": 1, "items": {"$ref": _where(key)}, **_words(knob)}
            for key, knob in knobs.items()
        }
        schema["properties"][kind] |= {"properties": listed, **_inside({"type": "array", "minItems": 1})}
    schema["properties"]["profile"]["enum"] = profile_names()
    schema["oneOf"] = [{"required": [kind]} for kind in KINDS]
    parts["Overrides"] = overrides
    parts["Search"]["properties"]["space"] |= {
        "properties": {key: {"$ref": "#/$defs/Dimension", **_words(knob)} for key, knob in knobs.items()},
        **_inside({"$ref": "#/$defs/Dimension"}),
    }
    parts |= _plain({**RewardConfig.model_json_schema()["$defs"], **JudgeConfig.model_json_schema()["$defs"]})
    parts["Dimension"]["oneOf"] = [{"required": ["low", "high"]}, {"required": ["values"]}]
    parts["Constraint"]["oneOf"] = [{"required": ["max"]}, {"required": ["min"]}]
    parts["Evaluation"], parts["Series"] = _metrics(evaluated=True), _metrics(evaluated=False)
    for part in ("Objective", "Constraint"):
        parts[part]["properties"]["metric"] |= {"$ref": "#/$defs/Evaluation"}
    for part in ("Hypothesis", "Falsifier"):
        parts[part]["properties"]["metric"]["anyOf"] = [{"$ref": "#/$defs/Evaluation"}, {"$ref": "#/$defs/Series"}]
    _forms(parts["Falsifier"])
    hypothesis = parts["Hypothesis"]
    weights = hypothesis["properties"]["contrast"]
    words = {"description": weights.pop("description")}
    hypothesis["properties"]["contrast"] = {**words, "anyOf": [{"type": "string"}, weights]}
    hypothesis["oneOf"] = [{"required": [key]} for key in ("contrast", "order")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Study",
        "description": _line(Study.__doc__),
    }


def _forms(falsifier: dict[str, Any]) -> None:
    """A falsifier speaks of a series before a step, or of an evaluation, which has none."""
    words = falsifier["properties"]["relative_to"]["description"]
    falsifier["properties"]["relative_to"] = {"type": "string", "enum": ["baseline"], "description": words}
    series = {"metric": {"$ref": "#/$defs/Series"}, "bound": {"type": "null"}}
    once = {
        "metric": {"$ref": "#/$defs/Evaluation"},
        "before_step": {"type": "null"},
        "aggregation": {"enum": ["any"]},
        "stop": {"enum": [False]},
    }
    falsifier["oneOf"] = [
        {"required": ["before_step"], "properties": series},
        {"required": ["metric"], "properties": once},
    ]


def _knobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dotted key that an arm can name, with its type, bounds, and values by profile."""
    profiles = {name: load_config(name).model_dump(mode="json") for name in PROFILES_SHOWN}
    for section, info in TrialConfig.model_fields.items():
        if not (isinstance(info.annotation, type) and issubclass(info.annotation, Section)):
            continue
        for name, field in info.annotation.model_json_schema()["properties"].items():
            key = f"{section}.{name}"
            if key in (SEED_KEY, STOP_KEY):
                continue
            values = ", ".join(
                f"{profile} {json.dumps(content[section][name])}" for profile, content in profiles.items()
            )
            only = f"; acts only with {needs(key)}" if needs(key) else ""
            knob = {**_plain(field), "description": f"{field['description']}{only} ({values})"}
            yield key, knob
            if key == NAME:
                yield SHORT, knob


def _inside(value: dict[str, Any]) -> dict[str, Any]:
    """No other keys but single entries of mappings, whose names are the user's."""
    return {"patternProperties": {f"^{re.escape(name)}\\.": value for name in MAPPINGS}, "additionalProperties": False}


def _where(key: str) -> str:
    return f"#/$defs/Overrides/properties/{key}"


def _words(knob: dict[str, Any]) -> dict[str, Any]:
    return {"description": knob["description"]}


def _metrics(evaluated: bool) -> dict[str, Any]:
    chosen = [metric for metric in METRICS.values() if metric.key.startswith("eval/") == evaluated]
    listed = {
        "enum": [metric.key for metric in chosen],
        "enumDescriptions": [f"{metric.unit}: {metric.formula}" for metric in chosen],
    }
    families = [family for family in FAMILIES if family.key.startswith("eval/") == evaluated]
    named = [
        {"pattern": f"^{family.key.partition('<')[0]}", "description": f"{family.unit}: {family.formula}"}
        for family in families
    ]
    return {"type": "string", "anyOf": [listed, *named]}


def _plain(node: Any) -> Any:
    """Without titles, without defaults that are null or repeat a whole section, and with docstrings cut to their first
    line."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _plain(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if "default" in kept and (kept["default"] is None or isinstance(kept["default"], dict | list)):
        del kept["default"]
    if isinstance(kept.get("description"), str):
        kept["description"] = _line(kept["description"])
    choices = [choice for choice in kept.get("anyOf", []) if choice != {"type": "null"}]
    if (
        len(choices) == 1
        and len(kept["anyOf"]) > 1
        and ("$ref" in choices[0] or choices[0]["type"] in ("object", "array"))
    ):
        kept |= choices[0]
        del kept["anyOf"]
    return kept


def _line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


if __name__ == "__main__":
    write_schema()
