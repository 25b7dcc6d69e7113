"""Adam for eager training."""

from __future__ import annotations

import inspect

import torch


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` without the import of TorchDynamo.

    The methods of torch's optimizers import `torch._dynamo` at their first call, to stay out of compiled graphs. This
    takes about as long as the import of torch. Nothing is compiled here, so the functions that torch wraps are called
    directly.
    """

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
