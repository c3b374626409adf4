"""Help for authors: a commented new study of each design, valid as it stands, and the JSON schema of a study file, by
which editors complete and check its keys.

It is made from the pydantic models, the trial's configuration and the list of metrics. Setting up and `new-study` write
it to ``studies/study.schema.json``, where the first line of the shipped studies looks for it; so does
``python -m studies.definition.authoring``. It refuses no valid file; reading the file finds what it lets through.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import jinja2

from pipeline.config.loading import MAPPINGS, dotted_keys, profile_names
from pipeline.config.names import SYMBOLS, nearest
from pipeline.config.presets import NAME, SHORT
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.run.layout import SAFE_NAME, safe
from pipeline.run.metrics import FAMILIES, METRICS
from studies.definition.fields import FIXED
from studies.definition.schema import CONFIRMATION, DERIVED, KINDS, STUDIES, Study, study_names

SCHEMA = STUDIES / "study.schema.json"
TEMPLATE = Path(__file__).with_name("study.yaml.j2")
DESIGNS = ("arms", "grid", "factors", "search", "command")
_OVERRIDES = "#/$defs/Overrides"


def header(path: Path) -> str:
    """The comment by which an editor finds the schema, for a study file at `path`."""
    where = SCHEMA.name if path.parent == SCHEMA.parent else str(SCHEMA)
    return f"# yaml-language-server: $schema={where}"


def new_study(name: str, design: str, folder: Path) -> Path:
    """Write ``<folder>/<name>.yaml`` and return its path.

    Raises `UserError` for a name that cannot be a file's or is that of a shipped study, for an unknown design,
    and for a file that exists: nothing is ever overwritten.
    """
    if design not in DESIGNS:
        raise UserError(f"--design '{design}'{nearest(design, DESIGNS)}; there are: {', '.join(DESIGNS)}")
    path = folder / f"{safe(name.removesuffix('.yaml'))}.yaml"
    if path.stem.endswith(CONFIRMATION):
        raise UserError(f"'{path.stem}': names that end with {CONFIRMATION} are those of confirmations; choose another")
    if path.stem in study_names():
        raise UserError(
            f"'{path.stem}' is the name of a study that comes with the project; choose another, for example"
            f" {path.stem}_mine"
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(path, design))
    except FileExistsError:
        raise UserError(f"{path} exists and is not overwritten; choose another name, or remove it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    write_schema()
    return path


def template(path: Path, design: str) -> str:
    """The text of a new study."""
    source = jinja2.Template(TEMPLATE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
    text: str = source.render(design=design, header=header(path), name=path.stem, symbols=SYMBOLS)
    return text


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
            knobs[key], own = _knob(key)
            parts |= own
    knobs |= {SHORT: knobs[NAME]}
    parts["Overrides"] = {"type": "object", **_of_knobs(knobs, {})}
    fields["arms"]["propertyNames"] = {"pattern": f"^{SAFE_NAME.pattern}$"}
    some: dict[str, Any] = {"type": "array", "minItems": 1}
    levels = _of_knobs({key: {**some, "items": {"$ref": f"{_OVERRIDES}/properties/{key}"}} for key in knobs}, some)
    value = {"type": ["boolean", "number", "string"]}
    schema["if"] = {"required": ["trainer"], "properties": {"trainer": {"type": "object"}}}
    schema["then"] = _of_arms(
        {"type": "object", "additionalProperties": value}, {"additionalProperties": {"items": value}}
    )
    schema["else"] = _of_arms({"$ref": _OVERRIDES}, levels)
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


def _of_knobs(properties: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """A mapping of these keys and no others but single entries of mappings, whose names are the user's."""
    inside = {f"^{re.escape(name)}\\.": value for name in MAPPINGS}
    return {"properties": properties, "patternProperties": inside, "additionalProperties": False}


def _of_arms(overrides: dict[str, Any], levels: dict[str, Any]) -> dict[str, Any]:
    """The designs, by the schema of one arm's changes and that of a grid or of factors."""
    return {"properties": {"arms": {"additionalProperties": overrides}, "grid": levels, "factors": levels}}


def _metric() -> dict[str, Any]:
    words = {metric.key: f"{metric.unit}: {metric.formula}" for metric in METRICS.values()}
    listed = {"enum": [*words], "enumDescriptions": [*words.values()]}
    families = [
        {"pattern": f"^{one.key.partition('<')[0]}", "description": f"{one.unit}: {one.formula}"} for one in FAMILIES
    ]
    return {"type": "string", "anyOf": [listed, *families]}


if __name__ == "__main__":
    write_schema()
