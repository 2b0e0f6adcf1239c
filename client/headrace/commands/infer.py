"""`headrace infer`: one request from files, JSON, photos or text, and its answer for eyes."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from headrace import display
from headrace.channel import DEFAULT_URL
from headrace.client import Client
from headrace.console import AsJson, CommandProblem, Seconds, Url, Version, print_json, working
from headrace.metadata import ModelMetadata, TensorSpec
from headrace.preprocess import files_to_tensor, find_tokenizer, image_as_it_is, images_to_tensor, texts_to_tensors
from headrace.result import InferResult
from headrace.values import parse_inputs, parse_outputs, parse_parameters
from headrace_core.cards import FileInput, ImageInput, TextInput
from headrace_core.datatypes import BFLOAT16

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=VALUE",
        help="VALUE is file.npy, JSON as in '[[1,2]]', or @file (.npy, .json, an image). NAME= may be left out where "
        "the model has one input.",
    ),
]
Tokenizer = Annotated[
    Path | None, typer.Option("--tokenizer", help="The tokenizer.json for --text, where it isn't found by itself.")
]
Models = Annotated[
    Path | None,
    typer.Option(
        "--models", envvar="HEADRACE_MODELS", help="Folder of model folders, where tokenizers are looked for."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(name="infer")(infer)


def infer(
    model: Annotated[str, typer.Argument(help="The model's name, or an alias.")],
    *,
    url: Url = DEFAULT_URL,
    inputs: Inputs = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", help="A picture, prepared as the model's card says. Repeat for rows."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="A text, for models whose card says so. Repeat for rows.")
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", help="A file's bytes, for models whose card says so. Repeat for rows."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="NAME[=FILE.npy]", help="Ask for this output only, and save it."),
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", metavar="KEY=VALUE", help="A request parameter.")
    ] = None,
    priority: Annotated[int, typer.Option(min=0, help="1 is the most urgent; 0: the model's default.")] = 0,
    request_id: Annotated[str, typer.Option("--id", help="Sent back, and found in the server's traces.")] = "",
    version: Version = "",
    tokenizer: Tokenizer = None,
    models: Models = None,
    top: Annotated[int | None, typer.Option(min=1, help="Classes to show. Default: what the card says.")] = None,
    timeout: Seconds = 60.0,
    as_json: AsJson = False,
) -> None:
    r"""Run a model once and print what it gives.

    \b
    headrace infer tiny --input x='[[0.1, 0.2]]'
    headrace infer efficientnet --image coffee.png
    headrace infer minilm --text "A first sentence." --text "A second."
    """
    wanted = parse_outputs(output or [])
    with Client(url, timeout=timeout) as client:
        metadata = client.metadata(model, version=version)
        values = gather(
            metadata,
            inputs=inputs or [],
            images=image or [],
            texts=text or [],
            files=file or [],
            tokenizer=tokenizer,
            models=models,
        )
        with working(f"asking {model}"):
            result = client.infer(
                model,
                values,
                version=version,
                outputs=list(wanted),
                parameters=parse_parameters(parameter or []),
                priority=priority,
                id=request_id,
            )
    for name, path in wanted.items():
        if path is not None:
            _save(result, name, path)
    if as_json:
        print_json(display.as_dict(result, card=metadata.card, top=top))
        return
    names = [*(path.name for path in (image or file or [])), *(text or [])]
    for line in display.lines(result, card=metadata.card, names=names, top=top):
        typer.echo(line)
    for name, path in wanted.items():
        if path is not None:
            typer.echo(f"{name} saved to {path}")


def gather(
    metadata: ModelMetadata,
    *,
    inputs: list[str],
    images: list[Path],
    texts: list[str],
    files: list[Path],
    tokenizer: Path | None,
    models: Path | None,
) -> dict[str, Any]:
    """The values for every input that the command line gives.

    Raises:
        CommandProblem: what was given can't become the model's inputs.
    """
    card = metadata.card.input if metadata.card else None
    values = parse_inputs(inputs, metadata=metadata)
    for name, value in values.items():
        if isinstance(value, Path):
            spec = _spec(metadata, name)
            fits = isinstance(card, ImageInput) and _pixel_input(metadata, card.tensor) == spec
            values[name] = (
                images_to_tensor([value], card=card, spec=spec)
                if fits and isinstance(card, ImageInput)
                else image_as_it_is(value, spec=spec)
            )
    made: dict[str, Any] = {}
    if images:
        if not isinstance(card, ImageInput):
            raise CommandProblem(_no_card(metadata, "--image", "pictures"))
        spec = _pixel_input(metadata, card.tensor)
        made[spec.name] = images_to_tensor(images, card=card, spec=spec)
    if texts:
        if not isinstance(card, TextInput):
            raise CommandProblem(_no_card(metadata, "--text", "text"))
        found = find_tokenizer(metadata.name, card=card, given=tokenizer, models=models)
        tensors, cut = texts_to_tensors(texts, card=card, tokenizer=found, metadata=metadata)
        for index in cut:
            typer.echo(f"text {index + 1} was cut to {card.max_tokens} tokens", err=True)
        made |= tensors
    if files:
        if not isinstance(card, FileInput):
            raise CommandProblem(_no_card(metadata, "--file", "files"))
        spec = _pixel_input(metadata, card.tensor)
        made[spec.name] = files_to_tensor(files, card=card, spec=spec)
    for name in made:
        if name in values:
            raise CommandProblem(
                f"{name!r} is given twice: by --input and by the option that the model's card fills it from"
            )
    if not values and not made and metadata.inputs:
        expected = ", ".join(map(str, metadata.inputs))
        raise CommandProblem(f"{metadata.name} takes {expected}: give --input NAME=VALUE for each{_shorter(card)}")
    return values | made


def _spec(metadata: ModelMetadata, name: str) -> TensorSpec:
    return next(spec for spec in metadata.inputs if spec.name == name)


def _pixel_input(metadata: ModelMetadata, name: str) -> TensorSpec:
    if not name and len(metadata.inputs) == 1:
        return metadata.inputs[0]
    found = [spec for spec in metadata.inputs if spec.name == name]
    if not found:
        raise CommandProblem(f"the card of {metadata.name} doesn't name an input that the model has")
    return found[0]


def _no_card(metadata: ModelMetadata, option: str, what: str) -> str:
    expected = ", ".join(map(str, metadata.inputs))
    return f"{option} doesn't fit: {metadata.name} has no card that says how it takes {what}; it takes {expected}"


def _shorter(card: ImageInput | TextInput | FileInput | None) -> str:
    return f", or --{card.kind}" if card else ""


def _save(result: InferResult, name: str, path: Path) -> None:
    array = result[name]
    if array.dtype == np.object_:
        raise CommandProblem(f"{name} is text, which .npy files don't hold; --json prints it")
    if array.dtype == BFLOAT16 and result.datatypes[name] == "BF16":
        # .npy has no bfloat16; float32 holds every value of it exactly.
        array = array.astype(np.float32) if array.dtype.kind == "V" else array
    try:
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    except OSError as error:
        raise CommandProblem(f"{path} can't be written: {error.strerror}") from error
