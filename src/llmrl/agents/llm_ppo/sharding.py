"""Weights that are too many for one GPU: those of a model's blocks are divided among the processes of a run.

Each process keeps 1/n of every block, and of its gradient and of Adam's averages; a block is whole for as long as it
computes (torch's `fully_shard`, Zhao et al. 2023, arXiv 2304.11277). What is outside of blocks (embeddings, the output
layer, heads) stays whole everywhere, and so does T5's position bias.

While a block computes, all processes exchange its parts. So all of them must run the same number of forward passes,
with the same number of gradients: `max(processes.all_gather_object(n))` says how many; who has less to do computes
something with weight 0.
"""

from __future__ import annotations

from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup


def shard(model: nn.Module, processes: ProcessGroup) -> None:
    """Divide the blocks of a transformers `model`, in place, before an optimiser is made of its parameters.

    Gradients of blocks are sums over the processes then, as `ProcessGroup.all_reduce_gradients` makes those of the
    rest.

    Raises:
        ConfigError: there is one process alone, or it is not known what a block of this model is.
    """
    if processes.world_size == 1:
        raise ConfigError("weights are divided among processes, and this one is alone; start several with torchrun")
    names = set(getattr(model, "_no_split_modules", None) or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        raise ConfigError(f"what the blocks of a {type(model).__name__} are is not known, so it cannot be divided")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    kind = next(model.parameters()).device.type
    mesh = init_device_mesh(kind, (processes.world_size,))
    # T5's first blocks hold the position bias of all; `Seq2SeqScorer` reads it while no block computes.
    whole = {p for name, p in model.named_parameters() if "relative_attention_bias" in name}
    for block in blocks:
        divided = fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
        # A sum, not a mean: a process computes its share of one loss. Not every backend scales while it sums.
        divided.set_force_sum_reduction_for_comms(True)
        divided.set_gradient_divide_factor(1.0)
