"""`silero_vad`: whether somebody speaks, 32 ms at a time. The wheel carries the model as ONNX.

Its state comes in and goes out with each request, and has the batch on its *second* axis: rows of one batch belong to
different streams. A row is 512 samples at 16 kHz after the last 64 of the chunk before.
"""

import shutil
from pathlib import Path

NAME = "silero_vad"
# Of the wheel's variants the one whose graph has no branches on its inputs, and names its batch axis.
SOURCE = Path("silero_vad/data/silero_vad_op18_ifless.onnx")
LICENCE = "MIT"


def build(wheels: Path, folder: Path) -> None:
    """Writes the model into its folder."""
    (folder / "1").mkdir()
    shutil.copy(wheels / SOURCE, folder / "1" / "model.onnx")
    (folder / "model.yaml").write_text(f"""\
card:
  summary: Whether somebody speaks, 32 ms at a time
  licence: {LICENCE}
""")
