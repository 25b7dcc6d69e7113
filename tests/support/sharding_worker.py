"""Work of each of several processes in tests/run/test_sharding.py: updates of a model divided among them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from llmrl.agents.llm_ppo.network import shard
from llmrl.algorithms import sharded
from llmrl.core.processes import ProcessGroup, leaving_group
from llmrl.run.checkpoints import CheckpointStore

STEPS = 4


def model() -> torch.nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    stream = torch.Generator().manual_seed(1)
    return [
        (torch.randint(1, 40, (5, 6), generator=stream), torch.randint(1, 40, (5, 3), generator=stream))
        for _ in range(STEPS)
    ]


def losses(net: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """One for each sample; the encoder is called by itself, as who scores many candidates for a prompt does."""
    hidden_states = net.get_encoder()(input_ids=ids)
    logits = net(encoder_outputs=hidden_states, labels=labels).logits
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(1)


def single_process() -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return the results of one process: norms of gradients, and the final weights."""
    net = model()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    norms = []
    for ids, labels in batches():
        adam.zero_grad()
        losses(net, ids, labels).mean().backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)))
        adam.step()
    return norms, net.state_dict()


def main() -> None:
    folder = Path(sys.argv[1])
    processes = ProcessGroup.join()
    norms: list[float] = []
    store = CheckpointStore(folder / str(processes.rank))
    net: Any
    for attempt in (0, 1):  # two steps, then two more of an attempt that begins with a checkpoint of them
        net = model()
        shard(net, processes)
        parameters = dict(net.named_parameters())
        adam = torch.optim.Adam(sharded.groups(net.parameters()), lr=1e-3)
        if attempt:
            _, state = store.load_newest() or (0, {})
            with torch.no_grad():
                for name, tensor in state["net"].items():
                    parameters[name].copy_(sharded.divided(tensor, parameters[name]))
            order = [p for group in adam.param_groups for p in group["params"]]
            averages = {"exp_avg": 0, "exp_avg_sq": 0}
            like = {i: {**dict.fromkeys(averages, p.detach())} for i, p in enumerate(order)}
            adam.load_state_dict({**state["adam"], "state": sharded.divided(state["adam"]["state"], like)})
        for ids, labels in batches()[2 * attempt : 2 * attempt + 2]:
            with torch.no_grad():
                losses(net, ids, labels)
            held = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in net.parameters())
            adam.zero_grad()
            share = processes.share(len(ids))
            (losses(net, ids[share], labels[share]).sum() / len(ids)).backward()
            processes.all_reduce_gradients(net.parameters())
            norms.append(float(sharded.clip_gradients(net.parameters(), 0.5, processes)))
            adam.step()
        net_state = sharded.gathered({name: p.detach() for name, p in parameters.items()})
        store.save(attempt, {"net": net_state, "adam": sharded.gathered(adam.state_dict())})
    reference, weights = single_process()
    total = sum(weights[name].numel() for name in net_state)
    report = {"held": held, "total": total, "norms": norms, "expected": reference}
    report["difference"] = max(float((net_state[name] - weights[name]).abs().max()) for name in net_state)
    (folder / f"said-{processes.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    with leaving_group():
        main()
