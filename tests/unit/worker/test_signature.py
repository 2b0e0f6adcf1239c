"""Which axis is guessed to count rows, before a probe decides."""

import pytest

from headrace_worker import signature
from headrace_worker.session import LoadFailed, Port

Shape = tuple[int | str | None, ...]


def guesses(given: dict[str, int | None] | None = None, /, **shapes: Shape) -> list[dict[str, int | None]]:
    ports = [Port(name, "tensor(float)", shape) for name, shape in shapes.items()]
    return signature.guesses(signature.read(ports, []).inputs, given=given or {})


@pytest.mark.parametrize(
    ("shapes", "first"),
    [
        ({"x": ("N", 4)}, {"x": 0}),
        ({"x": (None, 4)}, {"x": 0}),
        ({"ids": ("batch", "length"), "mask": ("batch", "length")}, {"ids": 0, "mask": 0}),
        ({"x": ("batch", 3), "state": (2, "batch", 128), "rate": ()}, {"x": 0, "state": 1, "rate": None}),
        ({"x": (None, 3), "state": (2, None, 128)}, {"x": 0, "state": 1}),
        ({"tokens": ("tokens",), "x": ("batch", 2)}, {"tokens": None, "x": 0}),
        ({"a": ("unk__1", 4), "b": ("unk__2", 4)}, {"a": 0, "b": 0}),
        ({"x": ("N", 4), "table": (1, 4)}, {"x": 0, "table": None}),
    ],
)
def test_the_likeliest_guess_comes_first(shapes: dict[str, Shape], first: dict[str, int | None]) -> None:
    assert guesses(**shapes)[0] == first


def test_axes_of_different_names_are_tried_as_one_batch_too() -> None:
    assert guesses(a=("batch", 4), b=("rows", 4)) == [{"a": 0, "b": None}, {"a": 0, "b": 0}]


def test_the_configuration_is_taken_at_its_word() -> None:
    assert guesses({"x": 1, "y": None}, x=("N", 4), y=("N", 4)) == [{"x": 1, "y": None}]


@pytest.mark.parametrize("shape", [(1, 4), (8, 4), ()])
def test_without_a_dynamic_axis_there_is_nothing_to_guess(shape: Shape) -> None:
    assert guesses(x=shape) == []


def test_a_type_that_cannot_travel_is_refused_with_advice() -> None:
    with pytest.raises(LoadFailed, match="ZipMap"):
        signature.read([], [Port("p", "seq(map(int64,tensor(float)))", ())])


def test_a_batch_axis_is_dynamic_whatever_was_declared() -> None:
    declared = signature.read([Port("x", "tensor(float)", (None, 4))], [Port("y", "tensor(float)", (1, 4))])
    assert declared.with_axes({"x": 0}, {"y": 0}).outputs[0].dims == (-1, 4)


def test_only_dimensions_beside_the_batch_make_shapes_vary() -> None:
    declared = signature.read([Port("x", "tensor(float)", ("N", 4))], [])
    assert not declared.with_axes({"x": 0}, {}).varies
    assert signature.read([Port("x", "tensor(float)", ("N", "T"))], []).with_axes({"x": 0}, {}).varies
