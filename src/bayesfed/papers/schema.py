"""A config or a paper's file against its schema (`schemas/`), and what is wrong in words."""

from __future__ import annotations

import functools
import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bayesfed.core import files
from bayesfed.core.errors import InputError, nearest

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

SCHEMAS = Path(__file__).parent / "schemas"
KINDS = {
    "array": "a list", "object": "keys and values", "string": "text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "null": "nothing",
}  # fmt: skip
OBJECTIONS = {  # of a schema, in words
    "minItems": "expected a list of {asked} or more, found {found!r}",
    "minProperties": "expected {asked} or more keys, found {found!r}",
    "minLength": "expected {asked} or more letters, found {found!r}",
    "minimum": "expected {asked} or more, found {found!r}",
    "uniqueItems": "expected each once, found {found!r}",
}


def check(value: object, kind: str, where: str) -> None:
    """Raises InputError where a `config` or a `paper` is not as its schema has it: what matters most, and at which key of
    what is called `where`."""
    import jsonschema

    check_plain(value, where)
    if wrong := jsonschema.exceptions.best_match(validator(kind).iter_errors(value)):
        said = f"{where}{wrong.json_path.removeprefix('$')}{objection(wrong)}"
        raise InputError(" ".join(said.split()))


@functools.cache
def validator(kind: str) -> Validator:
    """What checks a `config` or a `paper`, made once in a process: of each paper it is asked again."""
    import jsonschema
    import referencing

    schemas = {
        path.name: referencing.Resource.from_contents(files.read_yaml(path)) for path in sorted(SCHEMAS.glob("*.yaml"))
    }
    base = jsonschema.Draft202012Validator  # to JSON 2.0 is a whole number, to what reads it then it is none
    whole = base.TYPE_CHECKER.redefine("integer", lambda _, found: type(found) is int)
    return jsonschema.validators.extend(base, type_checker=whole)(  # type: ignore[no-any-return]
        schemas[f"{kind}.schema.yaml"].contents, registry=referencing.Registry().with_resources(schemas.items())
    )


def objection(wrong: ValidationError) -> str:
    """What a schema has against a value, in words that follow the value's place."""
    found, asked = wrong.instance, wrong.validator_value
    if wrong.validator == "required":
        return f".{next(key for key in asked if key not in found)}: this key is missing"
    if wrong.validator == "additionalProperties":
        valid = wrong.schema["properties"]
        key = next(key for key in found if key not in valid)
        return f".{key}: unknown key; {nearest(key, valid)}"
    if wrong.validator == "pattern":
        return f": {found!r}: expected {wrong.schema['description']}"
    if wrong.validator == "type":
        return f": expected {' or '.join(KINDS[kind] for kind in ([asked] if isinstance(asked, str) else asked))}, found {found!r}"
    if wrong.validator == "enum":
        return f": '{found}' is not a choice; {nearest(found, asked)}"
    return ": " + OBJECTIONS[wrong.validator].format(asked=asked, found=found)


def check_plain(value: object, where: str) -> None:
    """Raises InputError for what YAML has and JSON has not: dates, sets, keys that are no text, numbers that are not
    finite."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InputError(f"{where}: expected text as a key, found {key}; put it in quotes")
            check_plain(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            check_plain(inner, f"{where}[{number}]")
    elif isinstance(value, int | float):
        if not abs(value) <= sys.float_info.max:
            raise InputError(f"{where}: expected a finite number, found {reprlib.repr(value)}")
    elif value is not None and not isinstance(value, str):
        raise InputError(f"{where}: expected text, found {value}; put it in quotes")
