"""`gbdt`: a risk score from a table's row, with gradient-boosted trees. Trained here, in a second.

The data are the Wisconsin breast-cancer measurements that scikit-learn ships: 30 numbers in, the probability of
"benign" out. A fraud score has the same form; these are real, and anybody has them.
"""

from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split

NAME = "gbdt"
LICENCE = "BSD-3-Clause (data and training code from scikit-learn)"
FEATURES = 30


def train() -> tuple[GradientBoostingClassifier, np.ndarray]:
    """The fitted trees, and the rows that they have not seen."""
    rows, benign = load_breast_cancer(return_X_y=True)
    seen, unseen, answers, _ = train_test_split(rows.astype(np.float32), benign, random_state=0)
    return GradientBoostingClassifier(random_state=0).fit(seen, answers), unseen


def build(_wheels: Path, folder: Path) -> None:
    """Writes the model into its folder."""
    trees, _ = train()
    # Without zipmap: probabilities as a tensor, not as a list of dictionaries.
    model = to_onnx(
        trees,
        initial_types=[("input", FloatTensorType([None, FEATURES]))],
        options={id(trees): {"zipmap": False}},
        target_opset=21,
        name=NAME,
    )
    # The converter lists them in the order of a set, which differs between runs.
    model.opset_import.sort(key=lambda opset: opset.domain)
    (folder / "1").mkdir()
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "model.yaml").write_text(f"""\
card:
  summary: Benign or not, from 30 measurements of a cell sample
  licence: {LICENCE}
""")
