"""Queries to a scorer: distinct (prompt, candidates) pairs, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmrl.core.errors import ConfigError
from llmrl.llms.local.token_tree import TokenIds, TokenTree


@dataclass(frozen=True)
class ScoringQuery:
    """Prompt, token tree of its candidates, and number of words of each candidate."""

    prompt: TokenIds
    tree: TokenTree
    words: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of positions that the query takes without padding."""
        return len(self.prompt) + self.tree.n_nodes


def candidate_lists(n_prompts: int, candidates: Sequence[str] | Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return one tuple of candidates per prompt.

    Raises:
        ConfigError: the candidates are not texts or lists of texts, or their number does not fit.
    """
    if isinstance(candidates, str):
        raise ConfigError(f"candidates is one text ({candidates!r}); give a list of texts")
    if all(isinstance(candidate, str) for candidate in candidates):
        return [tuple(str(candidate) for candidate in candidates)] * n_prompts
    if any(isinstance(candidate, str) for candidate in candidates):
        raise ConfigError("candidates mixes texts and lists of texts; give one list for all prompts, or one for each")
    if len(candidates) != n_prompts:
        raise ConfigError(
            f"there are {len(candidates)} lists of candidates for {n_prompts} prompts; give one list for each prompt"
        )
    for i, texts in enumerate(candidates):
        if not texts:
            raise ConfigError(f"prompt {i} has no candidates; give at least one text")
    return [tuple(texts) for texts in candidates]


def length_batches(queries: Sequence[ScoringQuery], budget: int) -> list[list[int]]:
    """Group the indices of queries of similar length. A batch of two or more has at most `budget` padded positions."""
    batches: list[list[int]] = []
    for i in sorted(range(len(queries)), key=lambda i: queries[i].tokens):
        batch = [*batches[-1], i] if batches else []
        max_length = max((len(queries[j].prompt) for j in batch), default=0)
        nodes = max((queries[j].tree.n_nodes for j in batch), default=0)
        if batch and len(batch) * (max_length + nodes) <= budget:
            batches[-1] = batch
        else:
            batches.append([i])
    return batches
