# SPDX-License-Identifier: Apache-2.0
"""Small tree models, trained in milliseconds, and folders of models for them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

ROWS = np.random.default_rng(7).normal(size=(80, 4)).astype(np.float32)
SIGNS = (ROWS[:, 0] > 0).astype(int)
THIRDS = np.digitize(ROWS[:, 0], [-0.5, 0.5])
TARGETS = {"binary": SIGNS, "multi": THIRDS, "regression": ROWS[:, 0] * 2}
CLASSES = {"binary": 2, "multi": 3, "regression": 0}


@functools.cache
def xgboost_model(kind):
    xgboost = pytest.importorskip("xgboost")
    objective = {
        "binary": {"objective": "binary:logistic"},
        "multi": {"objective": "multi:softmax", "num_class": 3},
        "regression": {"objective": "reg:squarederror"},
    }
    data = xgboost.DMatrix(ROWS, TARGETS[kind])
    return xgboost.train({"max_depth": 2, "nthread": 1, **objective[kind]}, data, 3)


@functools.cache
def lightgbm_model(kind):
    lightgbm = pytest.importorskip("lightgbm")
    settings = {"verbose": -1, "num_leaves": 4, "min_data_in_leaf": 2, "num_threads": 1}
    objective = {
        "binary": {"objective": "binary"},
        "multi": {"objective": "multiclass", "num_class": 3},
        "regression": {"objective": "regression"},
    }
    return lightgbm.train(settings | objective[kind], lightgbm.Dataset(ROWS, TARGETS[kind]), 3)


def make_model(folder, name, save, config):
    """Make the folder of a model: `save` writes its file."""
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    save(str(version / name))
    (folder / "config.pbtxt").write_text(config)
    return folder
