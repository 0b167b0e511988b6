"""Writes python/isotherm/results.py, the types of reports, from the schemas of docs/schema: `python results.py`.

`python results.py --check` says whether it is current, as a test does.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCHEMAS = HERE.parent / "docs/schema"
OUTPUT = HERE / "python/isotherm/results.py"

# The reports, by the names of their types.
REPORTS = {
    "Wss": "report-wss",
    "Idle": "report-idle",
    "Access": "report-access",
    "Heatmap": "report-heatmap",
    "Summary": "report-summary",
    "Footprint": "report-footprint",
    "ReclaimCurve": "reclaim-curve",
    "Size": "size",
    "Check": "check",
    "Tune": "tune",
    "Calibration": "calibrate",
}

HEAD = '''"""The types of reports, as `Report.to_dict()` gives them. Written by python/results.py from docs/schema.

Sizes are in bytes and durations in nanoseconds, unless a key ends in another unit.
"""

'''


def type_of(schema: Any, names: dict[str, str]) -> str:
    """The Python type of a schema; `names` are those of its definitions."""
    if not isinstance(schema, dict):
        return "Any"
    if "$ref" in schema:
        return names[schema["$ref"].rsplit("/", 1)[1]]
    if "const" in schema:
        return f"Literal[{json.dumps(schema['const'])}]"
    if "enum" in schema:
        words = [word for word in schema["enum"] if word is not None]
        literal = f"Literal[{', '.join(json.dumps(word) for word in words)}]"
        return literal if len(words) == len(schema["enum"]) else f"{literal} | None"
    for choice in ("anyOf", "oneOf"):
        words = [part.get("const") for part in schema.get(choice, []) if isinstance(part, dict)]
        if words and all(isinstance(word, str) for word in words):
            return type_of({"enum": list(dict.fromkeys(words))}, names)
        if choice in schema:
            return " | ".join(dict.fromkeys(type_of(part, names) for part in schema[choice]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of({**schema, "type": part}, names) for part in kind)
    if kind == "array":
        return f"list[{type_of(schema.get('items'), names)}]"
    if kind == "object" and "additionalProperties" in schema and not schema.get("properties"):
        return f"dict[str, {type_of(schema['additionalProperties'], names)}]"
    plain = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
    return plain.get(str(kind), "Any")


def plain_text(about: str) -> str:
    """A description in one line, without links."""
    return " ".join(about.replace("[`", "`").replace("`]", "`").replace("\\", "").split())


def merged(schema: dict[str, Any]) -> dict[str, Any]:
    """An object of several kinds as one: what not all of them have need not be there."""
    kinds = schema.get("oneOf", [])
    if not kinds or not all(isinstance(kind, dict) and kind.get("properties") for kind in kinds):
        return schema
    parts: dict[str, list[Any]] = {}
    for kind in kinds:
        for key, value in kind["properties"].items():
            parts.setdefault(key, []).append(value)
    common = {key for key in parts if all(key in kind.get("required", []) for kind in kinds)}
    properties = {**schema.get("properties", {}), **{key: {"anyOf": values} for key, values in sorted(parts.items())}}
    return {**schema, "properties": properties, "required": [*schema.get("required", []), *common]}


def class_of(name: str, schema: dict[str, Any], names: dict[str, str]) -> str:
    """A TypedDict for an object, an alias for anything else."""
    schema = merged(schema)
    doc = plain_text(schema.get("description", ""))
    if not schema.get("properties"):
        return f"{name} = {type_of(schema, names)}\n"
    lines = [f"class {name}(TypedDict):"]
    if doc:
        lines += ['    """' + doc + '"""', ""]
    for key, value in schema["properties"].items():
        kind = type_of(value, names)
        if key not in schema.get("required", []):
            kind = f"NotRequired[{kind}]"
        about = value.get("description") if isinstance(value, dict) else None
        if about:
            lines.append("    # " + plain_text(about))
        lines.append(f"    {key}: {kind}")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The module's text."""
    schemas = {name: json.loads((SCHEMAS / f"{file}.json").read_text()) for name, file in REPORTS.items()}
    # Definitions that are the same everywhere have one type, others one for each report.
    seen: dict[str, list[str]] = {}
    for schema in schemas.values():
        for name, definition in schema.get("$defs", {}).items():
            seen.setdefault(name, []).append(json.dumps(definition, sort_keys=True))
    done: dict[str, str] = {}
    for report, schema in schemas.items():
        is_shared = {name: len(set(seen[name])) == 1 and name not in REPORTS for name in schema.get("$defs", {})}
        names = {name: name if shared else f"{report}{name}" for name, shared in is_shared.items()}
        pending = dict(schema.get("$defs", {}))
        # Words have no type of their own: stubtest takes an alias of several for a union.
        for name, definition in schema.get("$defs", {}).items():
            if type_of(definition, names).startswith("Literal["):
                names[name] = type_of(pending.pop(name), names)
        while pending:
            # Referenced types come first.
            for name, definition in list(pending.items()):
                text = json.dumps(definition)
                others = [other for other in pending if other != name and f'#/$defs/{other}"' in text]
                if not others:
                    done.setdefault(names[name], class_of(names[name], definition, names))
                    del pending[name]
        done[report] = class_of(report, schema, names)
    text = "\n\n".join(done.values())
    names = [name for name in ("Any", "Literal", "NotRequired", "TypedDict") if re.search(rf"\b{name}\b", text)]
    return f"{HEAD}from typing import {', '.join(names)}\n\n{text}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(OUTPUT.read_text() != written() and f"{OUTPUT} is stale; `python {__file__}` renews it")
    OUTPUT.write_text(written())
