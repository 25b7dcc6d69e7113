"""Token trees of candidates, with which a model computes common prefixes of candidates only once.

Node 0 is the root, whose output predicts the first tokens of candidates. Every other node is a token after which some
candidate continues. The last token of a candidate is predicted but not an input, so it has a node only if another
candidate continues after it. All candidates of a prompt are scored in one sequence of nodes, in which a node attends
only to its ancestors.

Two alternatives were slower on a CPU, with and without gradients: one sequence per candidate with a copied
cross-attention cache (T5), and separate passes for the prompt and, with its cache, for the tree (Llama).
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
    """Token tree of a list of candidates. Parents come before their children.

    Attributes:
        tokens: input token of each node, [n_nodes] int64; 0 at the root, which the scorer replaces.
        depths: distance from the root, [n_nodes] int64.
        ancestors: whether node j is node i or one of its ancestors, [n_nodes (i), n_nodes (j)] bool.
        parents: node index that predicts each token of each candidate, [n_candidates, max_length] int64, padded with 0.
        targets: token ids of each candidate, [n_candidates, max_length] int64, padded with 0.
        lengths: number of tokens of each candidate, [n_candidates] int64, >= 1.
    """

    tokens: np.ndarray
    depths: np.ndarray
    ancestors: np.ndarray
    parents: np.ndarray
    targets: np.ndarray
    lengths: np.ndarray

    @property
    def n_nodes(self) -> int:
        """Number of nodes, including the root."""
        return len(self.tokens)

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest candidate; 0 if there are no candidates."""
        return int(self.lengths.max(initial=0))


@lru_cache(maxsize=1024)
def build_token_tree(candidates: tuple[TokenIds, ...]) -> TokenTree:
    """Return the token tree of `candidates`, each with at least one token; the same object for equal candidates."""
    max_length = max((len(ids) for ids in candidates), default=0)
    parents = np.zeros((len(candidates), max_length), np.int64)
    targets = np.zeros((len(candidates), max_length), np.int64)
    nodes: dict[TokenIds, int] = {(): 0}  # prefix -> node
    for i, ids in enumerate(candidates):
        for k, token in enumerate(ids):
            parents[i, k] = nodes.setdefault(ids[:k], len(nodes))
            targets[i, k] = token
    ancestors = np.zeros((len(nodes), len(nodes)), np.bool_)
    for prefix, node in nodes.items():
        ancestors[node, [nodes[prefix[:k]] for k in range(len(prefix) + 1)]] = True
    return TokenTree(
        tokens=np.array([prefix[-1] if prefix else 0 for prefix in nodes], np.int64),
        depths=np.array([len(prefix) for prefix in nodes], np.int64),
        ancestors=ancestors,
        parents=parents,
        targets=targets,
        lengths=np.array([len(ids) for ids in candidates], np.int64),
    )


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """Token trees of several prompts, padded to one size: fields of `TokenTree` with a leading axis [n_trees].

    n_trees is 1 if all prompts have the same candidates. Padding nodes attend only to themselves, because the softmax
    over no position is NaN, and are ancestors of no other node. Padding candidates have length 0.
    """

    tokens: torch.Tensor
    depths: torch.Tensor
    ancestors: torch.Tensor
    parents: torch.Tensor
    targets: torch.Tensor
    lengths: torch.Tensor

    @property
    def n_nodes(self) -> int:
        """Number of nodes of each padded tree."""
        return self.tokens.shape[1]

    @staticmethod
    def stack(trees: Sequence[TokenTree], n_candidates: int, device: torch.device) -> TreeBatch:
        """Pad `trees` to the size of the largest one and to `n_candidates`, and move them to `device`."""
        trees = trees[:1] if all(tree is trees[0] for tree in trees) else trees
        n_nodes = max(tree.n_nodes for tree in trees)

        def pad(arrays: Sequence[np.ndarray], *shape: int) -> np.ndarray:
            padded = np.zeros((len(trees), *shape), arrays[0].dtype)
            for row, array in zip(padded, arrays, strict=True):
                row[tuple(slice(n) for n in array.shape)] = array
            return padded

        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("tokens", "depths"), (n_nodes,))
        shapes |= dict.fromkeys(("parents", "targets"), (n_candidates, max(tree.max_length for tree in trees)))
        shapes |= {"ancestors": (n_nodes, n_nodes), "lengths": (n_candidates,)}
        arrays = {name: pad([getattr(tree, name) for tree in trees], *shape) for name, shape in shapes.items()}
        arrays["ancestors"] |= np.eye(n_nodes, dtype=np.bool_)
        return TreeBatch(**{name: torch.from_numpy(array).to(device) for name, array in arrays.items()})

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """Return log p of each candidate, [batch, n_candidates] float32; -inf for padding candidates.

        Args:
            logits: logits at each node, [batch, n_nodes, vocabulary], of any float type; the softmax is in float32.
        """
        node_scores = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        return self._sum_token_scores(node_scores, 0.0).masked_fill(self.lengths == 0, -torch.inf)

    def logit_sums(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the sum of each candidate's logits, [batch, n_candidates] float32; -inf for padding candidates.

        1 is added for each token by which a candidate is shorter than the longest one (`ScorerSettings.parity`).
        """
        return self._sum_token_scores(logits.float(), 1.0).masked_fill(self.lengths == 0, -torch.inf)

    def _sum_token_scores(self, node_scores: torch.Tensor, padding_score: float) -> torch.Tensor:
        """Sum `node_scores` [batch, n_nodes, vocabulary] over the tokens of each candidate.

        Each position after the end of a candidate contributes `padding_score`.
        """
        batch, _, vocabulary = node_scores.shape
        shape = (batch, *self.targets.shape[1:])
        flat_indices = (self.parents * vocabulary + self.targets).expand(shape).reshape(batch, -1)
        mask = torch.arange(shape[2], device=node_scores.device) < self.lengths[..., None]
        return node_scores.reshape(batch, -1).gather(1, flat_indices).view(shape).where(mask, padding_score).sum(-1)
