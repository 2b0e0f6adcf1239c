"""An answer for eyes: shapes, values abridged, the likeliest classes by name, vectors by how near they are."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.metadata import format_shape
from headrace.result import InferResult
from headrace_core.cards import Card, ClassesOutput, EmbeddingOutput
from headrace_core.tensors import Array

Classes = list[list[tuple[str, int, float]]]
"""For each row the likeliest classes: label, index, score."""


def lines(result: InferResult, *, card: Card | None, names: Sequence[str], top: int | None) -> list[str]:
    """The answer as text. `names` says what each row was made from, where something says it."""
    text = [f"{result.model} version {result.version}" + (f" id {result.id}" if result.id else "")]
    text += [f"  {key} = {value}" for key, value in result.parameters.items()]
    shown = card.output if card else None
    for name, array in result.outputs.items():
        text.append(f"{name} {result.datatypes[name]} {format_shape(array.shape)}")
        if isinstance(shown, ClassesOutput) and name == _shown(shown.tensor, result):
            text += _class_lines(classes(array, shown, top=top), names)
            continue
        text += [f"  {line}" for line in format_array(array).splitlines()]
        if isinstance(shown, EmbeddingOutput) and name == _shown(shown.tensor, result) and len(array) > 1:
            text.append("  cosine similarity of the rows:")
            text += [f"    {line}" for line in format_array(similarity(array)).splitlines()]
    return text


def as_dict(result: InferResult, *, card: Card | None, top: int | None) -> dict[str, Any]:
    """The answer as JSON values: outputs as the protocol's REST form has them, and what the card makes of them."""
    values: dict[str, Any] = {
        "model_name": result.model,
        "model_version": result.version,
        "id": result.id,
        "parameters": dict(result.parameters),
        "outputs": [
            {
                "name": name,
                "datatype": result.datatypes[name],
                "shape": list(array.shape),
                "data": _json_values(array.tolist()),
            }
            for name, array in result.outputs.items()
        ],
    }
    shown = card.output if card else None
    if shown is not None and (name := _shown(shown.tensor, result)) in result.outputs:
        array = result.outputs[name]
        if isinstance(shown, ClassesOutput):
            values["classes"] = [
                [{"label": label, "index": index, "score": _json_values(score)} for label, index, score in row]
                for row in classes(array, shown, top=top)
            ]
        elif len(array) > 1:
            values["similarity"] = _json_values(similarity(array).tolist())
    return values


def classes(array: Array, shown: ClassesOutput, *, top: int | None) -> Classes:
    """The likeliest classes of each row, the likeliest first."""
    scores = array.astype(np.float64).reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    if shown.softmax:
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
    labels = shown.labels if isinstance(shown.labels, tuple) else ()
    count = min(top or shown.top, scores.shape[-1])
    found: Classes = []
    for row in scores:
        order = np.argsort(-row, kind="stable")[:count]
        found.append([(_label(labels, int(index)), int(index), float(row[index])) for index in order])
    return found


def similarity(array: Array) -> Array:
    """The cosine of the angle between each two rows, `[rows, rows]`; rows of length zero are like nothing."""
    flat = array.astype(np.float64).reshape(len(array), -1)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.divide(flat, length, out=np.zeros_like(flat), where=length > 0)
    cosines: Array = unit @ unit.T
    return cosines


def format_array(array: Array) -> str:
    """Values, abridged where there are many; text as text where it is UTF-8."""
    if array.dtype == np.object_:
        shortened = np.empty(array.shape, dtype=np.object_)
        for index, element in np.ndenumerate(array):
            shortened[index] = _readable(element)
        array = shortened
    elif array.dtype.kind == "V":
        # bfloat16 and its like print as numbers only after widening.
        array = array.astype(np.float32)
    return np.array2string(array, threshold=24, edgeitems=3, precision=4, suppress_small=True, max_line_width=100)


def _shown(name: str, result: InferResult) -> str:
    return name or next(iter(result.outputs), "")


def _class_lines(found: Classes, names: Sequence[str]) -> list[str]:
    text: list[str] = []
    indent = "  "
    for number, row in enumerate(found):
        if len(found) > 1:
            text.append(f"  {names[number] if number < len(names) else f'row {number}'}")
            indent = "    "
        percent = all(0.0 <= score <= 1.0 for _, _, score in row)
        width = max((len(label) for label, _, _ in row), default=0)
        for label, _, score in row:
            text.append(f"{indent}{label:<{width}}  " + (f"{score * 100:5.1f} %" if percent else f"{score:.4g}"))
    return text


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if index < len(labels) else f"class {index}"


def _readable(element: object) -> str:
    text = element.decode("utf-8", "backslashreplace") if isinstance(element, bytes) else str(element)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _json_values(value: Any) -> Any:
    """Nested values that JSON can hold: NaN and infinities as protobuf's JSON writes them, bytes as text or base64."""
    match value:
        case list():
            return [_json_values(element) for element in value]
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case bool() | int() | float() | str():
            return value
        case _:
            # bfloat16 scalars of ml_dtypes.
            return _json_values(float(value))
