"""Base class of scorers, which compute log-probabilities of candidate texts after prompts with a local model."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.llms.local.loading import (
    Dtype,
    LoadedWeights,
    ModelKind,
    check_model,
    enable_recomputation,
    load_model,
    load_tokenizer,
)
from llmrl.llms.local.lora import AdapterSet, Lora
from llmrl.llms.local.small import SmallModelFactory, SmallModelSettings, resolve_model
from llmrl.llms.local.token_tree import TokenIds, TokenTree, TreeBatch, build_token_tree


@dataclass(frozen=True)
class ScoringQuery:
    """Prompt, token tree of its candidates, and number of words of each candidate."""

    prompt: TokenIds
    tree: TokenTree
    word_counts: tuple[int, ...] = ()

    @property
    def n_positions(self) -> int:
        """Number of token positions of prompt and tree, without padding."""
        return len(self.prompt) + self.tree.n_nodes


def normalize_candidates(n_prompts: int, candidates: Sequence[str] | Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return one tuple of candidates per prompt.

    Raises:
        ConfigError: `candidates` is neither a list of texts nor one non-empty list of texts for each prompt.
    """
    if isinstance(candidates, str):
        raise ConfigError(f"candidates is one text ({candidates!r}); give a list of texts")
    texts = tuple(candidate for candidate in candidates if isinstance(candidate, str))
    if len(texts) == len(candidates):
        return [texts] * n_prompts
    if texts:
        raise ConfigError("candidates mixes texts and lists of texts; give one list for all prompts, or one for each")
    if len(candidates) != n_prompts:
        raise ConfigError(
            f"there are {len(candidates)} lists of candidates for {n_prompts} prompts; give one list for each prompt"
        )
    candidates_by_prompt = [tuple(prompt_candidates) for prompt_candidates in candidates]
    if () in candidates_by_prompt:
        raise ConfigError(f"prompt {candidates_by_prompt.index(())} has no candidates; give at least one text")
    return candidates_by_prompt


def batch_by_length(queries: Sequence[ScoringQuery], max_positions: int) -> list[list[int]]:
    """Return batches of indices of queries; two or more queries together have at most `max_positions` with padding."""
    batches: list[list[int]] = []
    for i in sorted(range(len(queries)), key=lambda i: queries[i].n_positions):
        batch = [*batches[-1], i] if batches else []
        max_prompt_length = max((len(queries[j].prompt) for j in batch), default=0)
        max_nodes = max((queries[j].tree.n_nodes for j in batch), default=0)
        if batch and len(batch) * (max_prompt_length + max_nodes) <= max_positions:
            batches[-1] = batch
        else:
            batches.append([i])
    return batches


_MAX_CACHED_TEXTS = 50_000
"""Maximum number of texts in each cache of tokens; learners tokenize the same prompts many times."""
_SHORTENING_ADVICE = "give shorter prompts (e.g. a smaller env.history)"


@dataclass(frozen=True)
class ScorerOutput:
    """Result of `LocalScorer.forward`.

    Attributes:
        log_probs: log p(candidate | prompt), [n_prompts, n_candidates] float32, -inf for padding.
        state: hidden state of each prompt, [n_prompts, d], in the dtype of the weights, e.g. as input of a value head.
            Seq2seq: last decoder layer at decoder position 0. Causal: last layer at the last prompt token.
        n_positions: number of positions that the model computed, padding included.
    """

    log_probs: torch.Tensor
    state: torch.Tensor
    n_positions: int


@dataclass(frozen=True)
class ScorerSettings:
    """Options of local scorers; meanings, units and ranges are in `conf/llm/_local.yaml` and `_local_scorer.yaml`.

    Attributes:
        model: folder or name on the Hugging Face hub; None: `make` describes the model.
        dtype: type of the weights; the softmax over the vocabulary is always computed in float32.
        length_normalization: `none` sums a candidate's token log-probabilities, `tokens` takes their mean, `words`
            divides their sum by the number of words (Tan et al. 2024, arXiv 2401.14151).
        parity: reproduce the scores of the published code of online grounding (arXiv 2302.02662): sums of unnormalized
            logits, plus 1 for each token by which a candidate is shorter than the longest one; prompt and candidate are
            tokenized separately, without special tokens around the prompt.
        batch_tokens: maximum number of positions in one forward pass. A longer prompt is computed alone.
        weights: which weights are loaded; the others are randomly initialized (`load_model`).
        make: small model that is created instead of loaded; None: `model` is loaded.
    """

    model: str | None
    revision: str | None
    dtype: Dtype
    length_normalization: Literal["none", "tokens", "words"]
    batch_tokens: PositiveInt
    weights: LoadedWeights
    parity: bool
    make: SmallModelSettings | None


class LocalScorer(ABC):
    """Scorer that computes log p(candidate | prompt) = sum_k log softmax(logits_k)[token_k], with gradients.

    One forward pass computes a batch of distinct prompts with the token trees of their candidates. Weights are loaded
    at first use, or by `load`. Dropout is never active, so scores are deterministic.

    Args:
        settings: options.
        device: torch device, e.g. `cpu` or `cuda`.
        seeds: seed tree, whose stream `weights` initializes weights.
        model_factory: factory of small models; needed for `make`.

    Raises:
        ConfigError: options are incompatible.
    """

    kind: ModelKind

    def __init__(
        self, settings: ScorerSettings, device: str, seeds: Seeds, model_factory: SmallModelFactory | None = None
    ) -> None:
        if settings.parity and settings.length_normalization != "none":
            raise ConfigError(
                f"llm.length_normalization={settings.length_normalization} cannot be used with llm.parity=true; "
                "set it to none"
            )
        self.settings, self.device, self._model_factory = settings, device, model_factory
        self.model = resolve_model(settings.model, settings.make, self.kind, model_factory)
        self._seed = seeds.integer("weights")
        suffixes = {"pretrained": "", "embeddings": ", drawn weights but for its words", "random": ", drawn weights"}
        model_title = self.model if settings.make is None else settings.make.label
        self.label = f"{model_title} (local scorer{suffixes[settings.weights]})"
        self._module: Any = None
        self._tokenizer: Any = None
        self._recomputes_activations = False
        self._adapters: AdapterSet | None = None
        self._tokenize_prompt = functools.lru_cache(_MAX_CACHED_TEXTS)(self._compute_prompt_tokens)
        self._cached_candidate_tokens = functools.lru_cache(_MAX_CACHED_TEXTS)(self._compute_candidate_tokens)

    @property
    def module(self) -> torch.nn.Module:
        """Language model, for optimizers and adapters; loaded at first access."""
        self.load()
        return self._module

    def check(self) -> None:
        """Raise LLMError if transformers is missing or `model` can be neither a folder nor a hub name."""
        check_model(self.model, created_on_demand=self.settings.make is not None)

    def load(self) -> None:
        """Load tokenizer and weights, if not yet loaded, and check scores of trees against those of plain sequences.

        Raises:
            LLMError: tokenizer or weights cannot be loaded, or the architecture does not support token trees.
        """
        if self._module is not None:
            return
        if self.settings.make is not None and self._model_factory is not None:
            self._model_factory.make(self.kind, self.settings.make)
        self._tokenizer = load_tokenizer(self.model, self.settings.revision)
        settings = self.settings
        module = load_model(
            self.kind, self.model, settings.revision, self.device, settings.dtype, settings.weights, self._seed
        )
        self._check_architecture(module)
        self._module = module
        try:
            self._check_tree_scores()
        except Exception:
            self._module = None
            raise

    def get_adapters(self, lora: Lora, seed: int) -> AdapterSet:
        """Return the adapters of the model. Only the first call uses `lora` and `seed` (see `AdapterSet`)."""
        if self._adapters is None:
            self._adapters = AdapterSet(self.module, lora, seed)
        return self._adapters

    def replace_module(self, module: torch.nn.Module) -> None:
        """Score with `module`, a copy of the model (e.g. with frozen weights), from now on."""
        self._module = module

    def recompute_activations(self) -> None:
        """Enable gradient checkpointing: less memory, about a third more time.

        Raises:
            LLMError: the model does not support gradient checkpointing.
        """
        enable_recomputation(self.module, f"{self.label}: agent.recompute=true")
        self._recomputes_activations = True

    def count_prompt_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each prompt."""
        self.load()
        return [len(self._tokenize_prompt(self._split_prompt(prompt)[0])) for prompt in prompts]

    def score(self, prompts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]]) -> torch.Tensor:
        """Return log p(candidate | prompt), [n_prompts, n_candidates] float32 on the device.

        Args:
            prompts: prompts, at least one.
            candidates: one list for all prompts, or a list for each; scores of shorter lists are padded with -inf.

        Raises:
            ConfigError: there are no candidates, a candidate is empty, or a prompt is too long.
            LLMError: the model cannot be loaded.
        """
        if not candidates:
            raise ConfigError("there are no candidates to score; give at least one text")
        return self.forward(prompts, candidates).log_probs

    def forward(self, prompts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]] = ()) -> ScorerOutput:
        """Return the log-probabilities of `score` ([n_prompts, 0] without candidates) and hidden states of prompts."""
        self.load()
        if not prompts:
            raise ConfigError("there are no prompts to score; give at least one")
        candidates_by_prompt = normalize_candidates(len(prompts), candidates)
        queries, query_indices = self._build_queries(prompts, candidates_by_prompt)
        n_candidates = max(len(texts) for texts in candidates_by_prompt)
        batches = batch_by_length(queries, self.settings.batch_tokens)
        outputs = [self._score_batch([queries[i] for i in batch], n_candidates) for batch in batches]
        # Outputs are in the order of batches; these indices restore the order of prompts.
        row_order = torch.from_numpy(np.argsort(np.concatenate(batches))[query_indices]).to(outputs[0].log_probs.device)
        return ScorerOutput(
            torch.cat([output.log_probs for output in outputs])[row_order],
            torch.cat([output.state for output in outputs])[row_order],
            sum(output.n_positions for output in outputs),
        )

    @abstractmethod
    def _check_architecture(self, module: Any) -> None:
        """Raise LLMError if `_run_model` does not support the architecture."""

    @abstractmethod
    def _select_prompt_tokens(self, ids: list[int], special_mask: list[int]) -> list[int]:
        """Return a prompt's `ids` without unwanted special tokens; `special_mask` is 1 for special tokens, else 0."""

    def _split_prompt(self, prompt: str) -> tuple[str, str]:
        """Split a prompt into the text that is tokenized as prompt and the text that is prepended to candidates."""
        return prompt, ""

    def _candidate_tokenization_context(self, prefix: str) -> str:
        """Return the end of the prompt with which candidates are tokenized together; "": they are tokenized alone."""
        return ""

    def _tokenize_continuations(self, context: str, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each of `texts` as continuation of `context`."""
        return self._tokenize_without_special(texts)

    @abstractmethod
    def _max_sequence_length(self) -> int | None:
        """Return the maximum number of tokens of prompt and candidate together; None: no limit."""

    @abstractmethod
    def _run_model(self, prompts: Sequence[TokenIds], trees: TreeBatch) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Run the model once on a batch of prompts and the trees of their candidates.

        Returns:
            Logits at the nodes of the trees, [batch, n_nodes, vocabulary]; and the attributes `state` [batch, d] and
            `n_positions` of `ScorerOutput`.
        """

    @abstractmethod
    def _logits_without_tree(self, prompt: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        """Return logits [n_tokens, vocabulary] for `candidate` [n_tokens] after `prompt`, from a plain sequence."""

    def _score_batch(self, queries: Sequence[ScoringQuery], n_candidates: int) -> ScorerOutput:
        """Return the scores and states of one batch of queries."""
        self._module.train(self._recomputes_activations and torch.is_grad_enabled())
        trees = TreeBatch.stack([query.tree for query in queries], n_candidates, self._module.device)
        logits, state, n_positions = self._run_model([query.prompt for query in queries], trees)
        log_probs = trees.logit_sums(logits) if self.settings.parity else trees.log_probs(logits)
        if self.settings.length_normalization == "tokens":
            log_probs = log_probs / trees.lengths.clamp(min=1)
        elif self.settings.length_normalization == "words":
            word_counts = [[*query.word_counts, *[1] * (n_candidates - len(query.word_counts))] for query in queries]
            log_probs = log_probs / torch.tensor(word_counts, device=log_probs.device)
        return ScorerOutput(log_probs, state, n_positions)

    def _build_queries(
        self, prompts: Sequence[str], candidates_by_prompt: Sequence[tuple[str, ...]]
    ) -> tuple[list[ScoringQuery], list[int]]:
        """Return the distinct queries, and for each prompt the index of its query."""
        pairs = list(zip(prompts, candidates_by_prompt, strict=True))
        query_index_by_pair = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
        queries = [
            ScoringQuery(
                self._tokenize_prompt(self._split_prompt(prompt)[0]),
                build_token_tree(self._tokenize_candidates(prompt, texts)),
                tuple(max(len(text.split()), 1) for text in texts),
            )
            for prompt, texts in query_index_by_pair
        ]
        limit = self._max_sequence_length()
        for (prompt, _), query in zip(query_index_by_pair, queries, strict=True):
            if limit is not None and len(query.prompt) + query.tree.max_length > limit:
                excerpt = prompt if len(prompt) <= 80 else f"{prompt[:40]} ... {prompt[-40:]}"
                raise ConfigError(
                    f"a prompt has {len(query.prompt)} tokens and its longest candidate {query.tree.max_length}, but "
                    f"{self.label} reads {limit}; {_SHORTENING_ADVICE}, or choose a model that reads more. The prompt: "
                    f"{excerpt!r}"
                )
        return queries, [query_index_by_pair[pair] for pair in pairs]

    def _compute_prompt_tokens(self, prompt: str) -> TokenIds:
        """Tokenize a prompt, and raise ConfigError if it has no tokens."""
        encoding = self._tokenizer(prompt, add_special_tokens=not self.settings.parity, return_special_tokens_mask=True)
        tokens = tuple(self._select_prompt_tokens(encoding["input_ids"], encoding["special_tokens_mask"]))
        if not tokens:
            raise ConfigError(f"a prompt is empty ({prompt!r}); give at least one token")
        return tokens

    def _compute_candidate_tokens(self, context: str, spaces: str, texts: tuple[str, ...]) -> tuple[TokenIds, ...]:
        """Return the tokens of each candidate in `texts`, with `spaces` before it, as continuation of `context`."""
        candidates = tuple(map(tuple, self._tokenize_continuations(context, [f"{spaces}{text}" for text in texts])))
        for i, (text, ids) in enumerate(zip(texts, candidates, strict=True)):
            if not text or not ids:
                raise ConfigError(f"candidate {i} ({text!r}) is empty: it has no tokens to score")
        return candidates

    def _tokenize_candidates(self, prompt: str, texts: tuple[str, ...]) -> tuple[TokenIds, ...]:
        """Return the tokens of candidates after a prompt, from the cache where possible."""
        if not texts:
            return ()
        prefix, trailing_spaces = self._split_prompt(prompt)
        return self._cached_candidate_tokens(self._candidate_tokenization_context(prefix), trailing_spaces, texts)

    def _tokenize_without_special(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts without special tokens."""
        return self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def _check_tree_scores(self) -> None:
        """Raise LLMError if scores of a small tree show that the model ignores the tree's mask or its positions."""
        vocabulary = self._module.config.get_text_config().vocab_size
        prompts = [tuple(t % vocabulary for t in range(start, stop)) for start, stop in ((5, 16), (20, 25))]
        candidates = tuple(tuple(t % vocabulary for t in ids) for ids in ((31, 32, 33), (31, 34, 35), (36, 37), (38,)))
        trees = TreeBatch.stack([build_token_tree(candidates)], len(candidates), self._module.device)
        tree_scores = trees.log_probs(self._run_model(prompts, trees)[0])
        scores = []
        for prompt, ids in itertools.product(prompts, candidates):
            target = torch.tensor(ids, device=tree_scores.device)
            logits = self._logits_without_tree(torch.tensor(prompt, device=tree_scores.device), target)
            scores.append(logits.float().log_softmax(-1).gather(1, target[:, None]).sum())
        plain_scores = torch.stack(scores).view_as(tree_scores)
        rtol, atol = (1e-3, 1e-2) if self.settings.dtype == "float32" else (0.05, 0.5)
        if not torch.allclose(tree_scores, plain_scores, rtol=rtol, atol=atol):
            raise self._architecture_error(
                self._module,
                "scores of all candidates in one pass differ from those of one pass per candidate (largest difference "
                f"{float((tree_scores - plain_scores).abs().max()):.2g}), so it ignores masks or positions",
            )

    def _architecture_error(self, module: Any, reason: str) -> LLMError:
        supported = "T5, Flan-T5, mT5" if self.kind == "seq2seq" else "Llama, Qwen, Mistral, GPT-2, Phi and most others"
        return LLMError(
            f"{self.label}: {type(module).__name__} cannot be scored: {reason}. Use another {self.kind} model, "
            f"e.g. {supported}"
        )


@contextmanager
def last_hidden_states(module: Any) -> Iterator[list[torch.Tensor]]:
    """Yield a list that collects the last decoder layer's output, [batch, n_positions, d] for each forward pass."""
    hidden_states: list[torch.Tensor] = []
    handle = module.get_decoder().register_forward_hook(lambda _module, _args, output: hidden_states.append(output[0]))
    try:
        yield hidden_states
    finally:
        handle.remove()


def additive_mask(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask to add to attention scores: 0 where attention is allowed, elsewhere the dtype's lowest number."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)
