"""Scikit-learn's handwritten digits: 1,797 images of 8 × 8 pixels in 17 grey levels, the data of chapters 05 and 06.

    levels, labels = digits.load()       # what sklearn.datasets.load_digits() gives, as whole numbers

From E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998
(its test set). They come with scikit-learn, so nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Where the file is, for an interpreter that has no scikit-learn: TensorFlow's.
VARIABLE = "SAMEBITS_DIGITS"


def load() -> tuple[np.ndarray, np.ndarray]:
    """(levels, labels): (1797, 8, 8) int64 from 0, white, to 16, black; (1797,) int64, the digit.

    Raises ImportError, in one sentence, where scikit-learn is not installed.
    """
    # The file is read as it is: importing scikit-learn takes most of a second and brings a second OpenMP
    # into a process whose races are studied.
    where = os.environ.get(VARIABLE) or file()
    if where:
        table = np.loadtxt(where, delimiter=",", dtype=np.int64)
        return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    from sklearn.datasets import load_digits  # it has moved its file

    bunch = load_digits()
    return bunch.images.astype(np.int64), bunch.target.astype(np.int64)


def file() -> str:
    """The path of scikit-learn's file; "" if it is not where it was in scikit-learn 1.9.

    Raises ImportError, in one sentence, where scikit-learn is not installed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None:
        raise ImportError(
            "The digits come with scikit-learn, which is not installed here; ./course lab installs it."
        )
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    return str(path) if path.is_file() else ""
