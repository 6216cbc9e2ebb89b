"""Ops with faults of our own, for the atlas: the worker finds them by PYTHONPATH."""

from samebits.experiments.atlas_ops import Op, experiment


def _raising(given):
    """Plants torch.planted, which does what a kernel without a deterministic way does."""
    import torch

    def planted(values):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(
                "planted_kernel_cuda does not have a deterministic implementation, but you set "
                "'torch.use_deterministic_algorithms(True)'."
            )
        return values

    torch.planted = planted
    return {"values": given.normal(10)}


def _values(given):
    return {"values": given.normal(10)}


OPS = (
    Op("steady", "planted", "values + 1", _values),
    Op(
        "varies-always",
        "planted",
        "torch.rand(3)",
        _values,
        documented=("torch.Tensor.put_",),
        features=("accumulate=True",),
    ),
    Op("raises-under-flag", "planted", "torch.planted(values)", _raising),
    Op("gone-1", "broken", "torch.no_such_function(values)", _values),
    Op("races-unseen", "unseen", "values + 1", _values, races=("cpu",)),
    Op("slow", "slow", "[torch.ones(1), __import__('time').sleep(0.2)][0]", _values),
)
PLANTED = experiment("planted_atlas:PLANTED", OPS)
