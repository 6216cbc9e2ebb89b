"""The experiments of the course, one module each; this list is the only place that knows them all."""

from __future__ import annotations

import importlib

from samebits.experiment import BadSetting, Experiment, nearest

# In the order in which the course meets them.
_PLACES = {
    "sum-order": "samebits.experiments.sum_order:SUM_ORDER",
    "scatter": "samebits.experiments.scatter:SCATTER",
    "atomic-sum": "samebits.experiments.atomic_sum:ATOMIC_SUM",
    "conv-ways": "samebits.experiments.conv_ways:CONV_WAYS",
    "conv-autotune": "samebits.experiments.conv_autotune:CONV_AUTOTUNE",
    "conv-algorithm": "samebits.experiments.conv_algorithm:CONV_ALGORITHM",
    "split-k": "samebits.experiments.gemm_split_k:SPLIT_K",
    "gemm-workspace": "samebits.experiments.gemm_workspace:GEMM_WORKSPACE",
    "gemm-environment": "samebits.experiments.gemm_environment:GEMM_ENVIRONMENT",
    "digits-training": "samebits.experiments.digits_training:DIGITS_TRAINING",
    "keras-training": "samebits.experiments.keras_training:KERAS_TRAINING",
    "tf-ops": "samebits.experiments.tf_ops:TF_OPS",
    "tf-data": "samebits.experiments.tf_pipeline:TF_DATA",
    "thousand-models": "samebits.experiments.thousand_models:THOUSAND_MODELS",
    "factorisation": "samebits.experiments.factorisation:FACTORISATION",
    "sage-training": "samebits.experiments.sage_training:SAGE_TRAINING",
    "price": "samebits.experiments.price:PRICE",
    "atlas-op": "samebits.experiments.atlas_ops:ATLAS_OP",
}


def names() -> list[str]:
    return list(_PLACES)


def find(name: str) -> Experiment:
    """The experiment called `name`, or the one at "module:ATTRIBUTE" for one that is not the course's own.

    Raises BadSetting, naming the nearest experiment.
    """
    place = _PLACES.get(name, name if ":" in name else None)
    if place is None:
        raise BadSetting(f"There is no experiment {name!r}. {nearest(name, names())}")
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError) as error:
        raise BadSetting(
            f"There is no experiment {name!r}: {module!r} cannot be imported ({error})."
        ) from error
    if not isinstance(found, Experiment):
        raise BadSetting(f"There is no experiment {name!r}: {module} has none called {attribute!r}.")
    return found
