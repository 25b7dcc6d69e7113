"""Candidates as a tree of tokens: what they share at the start is computed once.

Node 0 is the root, the place after the prompt. Every other node is a token that some candidate goes on after: the
last token of a candidate is predicted but never read, so it has a node only where another candidate passes through it.
All candidates of a prompt are scored in one sequence of nodes, in which a node attends to its ancestors only.

Two other ways were slower on a processor, with gradients and without: a row per candidate on an expanded
cross-attention cache (T5), and the prompt first with the tree on its cache (Llama; by little without gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

TokenIds = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TokenTree:
    """The tree of one set of candidates. Parents come before their children.

    Attributes:
        token: token read at each node, [n_nodes] int64; 0 at the root, which the model's class fills in.
        depth: distance from the root, [n_nodes] int64.
        ancestors: [n_nodes, n_nodes] bool; [i, j]: j is i, or lies on the way from the root to i.
        parent: node that predicts each token of each candidate, [n_candidates, longest] int64, 0 beyond the end.
        target: those tokens, [n_candidates, longest] int64, 0 beyond the end.
        length: tokens of each candidate, [n_candidates] int64, at least 1.
    """

    token: np.ndarray
    depth: np.ndarray
    ancestors: np.ndarray
    parent: np.ndarray
    target: np.ndarray
    length: np.ndarray

    @property
    def n_nodes(self) -> int:
        return len(self.token)

    @property
    def longest(self) -> int:
        """Tokens of the longest candidate; 0 where there is none."""
        return int(self.length.max(initial=0))


@lru_cache(maxsize=1024)
def token_tree(candidates: tuple[TokenIds, ...]) -> TokenTree:
    """The tree of `candidates`, each at least one token long. Equal arguments give the same object."""
    longest = max((len(ids) for ids in candidates), default=0)
    parent = np.zeros((len(candidates), longest), np.int64)
    target = np.zeros((len(candidates), longest), np.int64)
    nodes: dict[TokenIds, int] = {(): 0}  # prefix -> node
    for i, ids in enumerate(candidates):
        for k, token in enumerate(ids):
            parent[i, k] = nodes.setdefault(ids[:k], len(nodes))
            target[i, k] = token
    ancestors = np.zeros((len(nodes), len(nodes)), np.bool_)
    for prefix, node in nodes.items():
        ancestors[node, [nodes[prefix[:k]] for k in range(len(prefix) + 1)]] = True
    return TokenTree(
        token=np.array([prefix[-1] if prefix else 0 for prefix in nodes], np.int64),
        depth=np.array([len(prefix) for prefix in nodes], np.int64),
        ancestors=ancestors,
        parent=parent,
        target=target,
        length=np.array([len(ids) for ids in candidates], np.int64),
    )


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """Trees of several prompts, padded to one size, on the device: `TokenTree` with an axis [n_trees] in front.

    n_trees is 1 where all prompts have the same candidates. Padding nodes see themselves alone (an empty row of an
    attention mask would give NaN) and are no one's ancestor; padding candidates have length 0.
    """

    token: torch.Tensor
    depth: torch.Tensor
    ancestors: torch.Tensor
    parent: torch.Tensor
    target: torch.Tensor
    length: torch.Tensor

    @property
    def n_nodes(self) -> int:
        return self.token.shape[1]

    @staticmethod
    def stack(trees: Sequence[TokenTree], n_candidates: int, device: torch.device) -> TreeBatch:
        """`trees` padded to their largest size and to `n_candidates`."""
        trees = trees[:1] if all(tree is trees[0] for tree in trees) else trees
        n_nodes = max(tree.n_nodes for tree in trees)
        longest = max(tree.longest for tree in trees)

        def pad(arrays: Sequence[np.ndarray], *shape: int) -> np.ndarray:
            out = np.zeros((len(trees), *shape), arrays[0].dtype)
            for row, array in zip(out, arrays, strict=True):
                row[tuple(slice(n) for n in array.shape)] = array
            return out

        ancestors = pad([tree.ancestors for tree in trees], n_nodes, n_nodes) | np.eye(n_nodes, dtype=np.bool_)
        arrays = (
            pad([tree.token for tree in trees], n_nodes),
            pad([tree.depth for tree in trees], n_nodes),
            ancestors,
            pad([tree.parent for tree in trees], n_candidates, longest),
            pad([tree.target for tree in trees], n_candidates, longest),
            pad([tree.length for tree in trees], n_candidates),
        )
        return TreeBatch(*(torch.from_numpy(array).to(device) for array in arrays))

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """log p of each candidate, [batch, n_candidates] float32; -inf for padding candidates.

        Args:
            logits: [batch, n_nodes, vocabulary], of any float type; probabilities are normalised in float32.
        """
        nodes = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        return self._sums(nodes, 0.0).masked_fill(self.length == 0, -torch.inf)

    def logit_sums(self, logits: torch.Tensor) -> torch.Tensor:
        """Sums of the candidates' logits as they are, [batch, n_candidates] float32, with 1 for each token that a
        candidate has less than the longest: what the published code takes for scores; -inf for padding candidates."""
        return self._sums(logits.float(), 1.0).masked_fill(self.length == 0, -torch.inf)

    def _sums(self, nodes: torch.Tensor, beyond: float) -> torch.Tensor:
        """For each candidate the sum of what `nodes` [batch, n_nodes, vocabulary] say of its tokens, and `beyond` for
        each place beyond its end."""
        batch, _, vocabulary = nodes.shape
        shape = (batch, *self.target.shape[1:])
        edges = (self.parent * vocabulary + self.target).expand(shape).reshape(batch, -1)
        tokens = nodes.reshape(batch, -1).gather(1, edges).view(shape)
        inside = torch.arange(shape[2], device=nodes.device) < self.length[..., None]
        return tokens.where(inside, beyond).sum(-1)
