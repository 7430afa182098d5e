"""The form of a statement file, as typed classes that pydantic validates and turns into a JSON schema.

Run ``python -m quantlab.matrix.schema`` to write matrix/schema/statements.json anew. Queries never import this
module: they read the checked data straight into the plain dataclasses of ``quantlab.matrix.model``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from quantlab.matrix.data import data_folder
from quantlab.matrix.model import FACTS, Confidence, Mode, Operation, Scalar

SCHEMA_FILE = "schema/statements.json"

ClaimedOutcome = Literal["works", "works-with-fallback", "fails", "silent-wrong-result"]
"""What a statement may claim; ``unknown`` is never claimed."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Bounds(_Strict):
    """A condition on a fact that is more than a list of values."""

    allowed: list[Scalar] | None = Field(default=None, alias="in")
    excluded: list[Scalar] | Scalar | None = Field(default=None, alias="not")
    minimum: float | None = Field(default=None, alias="min")
    maximum: float | None = Field(default=None, alias="max")
    multiple_of: int | None = None
    present: bool | None = None


class DivisionForm(_Strict):
    """A dimension that has to divide by a number or by another fact, after a split."""

    dimension: str
    by: int | str
    after: str | None = None


Condition = Bounds | list[Scalar] | Scalar


class _Conditions(_Strict):
    gpus: list[str] | str | None = None
    versions: dict[str, str] | None = None
    operation: list[Operation] | Operation | None = None
    undivided: DivisionForm | None = None


_FACT_FIELDS: dict[str, Any] = {
    name: (Condition | None, Field(default=None, description=words)) for name, words in FACTS.items()
}
WhenForm = create_model("WhenForm", __base__=_Conditions, **_FACT_FIELDS)
LimitsForm = create_model("LimitsForm", __base__=_Strict, **_FACT_FIELDS)


class StatementForm(_Strict):
    """One statement as it is written."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    engine: list[str] | str | None = None
    when: WhenForm  # type: ignore[valid-type]
    outcome: ClaimedOutcome
    mode: Mode | None = None
    kernel: str | None = None
    reason: str
    fix: str | None = None
    limits: LimitsForm | None = None  # type: ignore[valid-type]
    divides: list[DivisionForm] | None = None
    requires: dict[str, str] | None = None
    environment: dict[str, str] | None = None
    confidence: Confidence | None = None
    sources: list[str] | None = None
    precedence: int | None = None


class StatementFile(_Strict):
    """A file of matrix/support: what its statements share, and the statements."""

    engine: list[str] | str
    when: WhenForm | None = None  # type: ignore[valid-type]
    sources: list[str] | None = None
    statements: list[StatementForm]


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a statement file."""
    return TypeAdapter(StatementFile).json_schema(by_alias=True)


def problems(content: Any) -> list[str]:
    """Return what is wrong with the form of a statement file, one line each."""
    try:
        StatementFile.model_validate(content)
    except ValidationError as error:
        return [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return []


def write() -> None:
    """Write the schema beside the data."""
    import json

    path = data_folder() / SCHEMA_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
