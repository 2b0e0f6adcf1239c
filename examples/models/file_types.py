"""`magika`: what type a file is, from its first and last kilobyte. The wheel carries the model as ONNX."""

import json
import shutil
from pathlib import Path

NAME = "magika"
SOURCE = Path("magika/models/standard_v3_3")
LICENCE = "Apache-2.0"


def build(wheels: Path, folder: Path) -> None:
    """Writes the model into its folder, with its labels."""
    source = wheels / SOURCE
    config = json.loads((source / "config.min.json").read_text())
    (folder / "1").mkdir()
    shutil.copy(source / "model.onnx", folder / "1")
    (folder / "labels.txt").write_text("\n".join(config["target_labels_space"]) + "\n")
    (folder / "model.yaml").write_text(f"""\
card:
  summary: What type a file is, from its first and last kilobyte
  licence: {LICENCE}
  input:
    kind: file
    head: {config["beg_size"]}
    tail: {config["end_size"]}
    window: {config["block_size"]}
    pad: {config["padding_token"]}
  output:
    kind: classes
    labels: labels.txt
""")
