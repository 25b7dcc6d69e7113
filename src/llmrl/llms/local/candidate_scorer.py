"""Base of scorers of all architectures: tokenisation, batches through the model, log-probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.processes import ProcessGroup
from llmrl.core.ranges import PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.llms.local.loading import Dtype, Kind, Weights, check_installed, check_model, load_model, load_tokenizer
from llmrl.llms.local.scoring_queries import ScoringQuery, candidate_lists, length_batches
from llmrl.llms.local.small import SmallModel, SmallModelFactory
from llmrl.llms.local.token_tree import TokenIds, TreeBatch, token_tree

_KEPT = 50_000
"""Most prompts whose tokens are memoised: learners read each many times."""
_SHORTER = "give shorter prompts (e.g. a smaller env.history)"
_CUT = "llm.truncate=left, which cuts off what a prompt begins with, e.g. the goal"


@dataclass(frozen=True)
class ScorerOutput:
    """Result of `LocalScorer.forward`.

    Attributes:
        log_probs: log p(candidate | prompt), [n_prompts, n_candidates] float32, -inf for padding.
        state: hidden state of the prompt, [n_prompts, d], in the dtype of the weights, as input of a value head.
            Seq2seq: last decoder layer at decoder position 0. Causal: last layer at the last prompt token.
        tokens: positions that the model computed, padding included.
    """

    log_probs: torch.Tensor
    state: torch.Tensor
    tokens: int


class ForwardPass(NamedTuple):
    """Result of one pass of a model.

    Attributes:
        logits: logits at the nodes of the trees, [batch, n_nodes, vocabulary].
        state: as in `ScorerOutput`, [batch, d].
        tokens: as in `ScorerOutput`.
    """

    logits: torch.Tensor
    state: torch.Tensor
    tokens: int


class LocalScorer(ABC):
    """Scorer: log p(candidate | prompt) = sum_k log softmax(logits_k)[token_k], differentiable in the weights.

    The model runs once per batch of distinct prompts, on the prompts and the token trees of their candidates. Weights
    are loaded at the first use, or by `load`. Dropout is never active: a score is a function of its arguments.

    Args:
        model: folder or name on the Hugging Face hub; None: `make` describes the model.
        revision: branch, tag or commit on the hub; None: its default branch.
        dtype: type of the weights; the softmax over the vocabulary is always computed in float32.
        length_normalization: `none` sums a candidate's token log-probabilities, `tokens` takes their mean, `words`
            divides their sum by the number of words (Tan et al. 2024, arXiv 2401.14151).
        parity: score as the published code of online grounding: sums of unnormalised logits, a bonus of 1 for each
            token that a candidate has less than the longest, prompt and candidate tokenised separately, and no special
            tokens around the prompt.
        prompt_special_tokens: add the tokenizer's special tokens to a prompt (T5: `</s>` after it; others: a BOS before
            it); None: unless `parity`.
        add_eos: score the end-of-sequence token after a candidate, so that log p is that of the complete text and not
            of all texts with this beginning.
        max_prompt_tokens: longest prompt, special tokens included; None: only the model's own limit.
        truncate: treatment of longer prompts: `error`, or `left`, which removes their beginning, e.g. the goal.
        batch_tokens: most positions in one pass of the model. A larger prompt runs alone.
        weights: which weights are loaded, and which are randomly initialised; see `load_model`.
        four_bit: keep loaded weights in four bits, frozen, and compute their products in half precision.
        make: small model that is created instead of loaded; None: `model` is loaded.
        seeds: seed tree, whose stream `weights` initialises weights; None: seed 0.
        device: torch device, e.g. `cpu` or `cuda`.
        workshop: factory of small models; needed for `make`.

    Raises:
        ConfigError: options exclude each other.
    """

    kind: Kind

    def __init__(
        self,
        model: str | None,
        revision: str | None = None,
        dtype: Dtype = "float32",
        length_normalization: Literal["none", "tokens", "words"] = "none",
        add_eos: bool = False,
        max_prompt_tokens: PositiveInt | None = None,
        truncate: Literal["error", "left"] = "error",
        batch_tokens: PositiveInt = 8192,
        weights: Weights = "pretrained",
        four_bit: bool = False,
        parity: bool = False,
        prompt_special_tokens: bool | None = None,
        make: SmallModel | None = None,
        *,
        device: str = "cpu",
        seeds: Seeds | None = None,
        workshop: SmallModelFactory | None = None,
    ) -> None:
        if (model is None) == (make is None):
            raise ConfigError(
                "llm.model names a model that is loaded and llm.make says what is made: set one of the two"
            )
        if parity and length_normalization != "none":
            raise ConfigError("llm.parity=true sums logits as they are: llm.length_normalization must be none")
        self._make, self._workshop = make, workshop
        if make is not None:
            if workshop is None:
                raise ConfigError("llm.make: a model can be made for an environment alone")
            model = str(workshop.folder(self.kind, make))
        assert model is not None
        self.model, self.revision, self.dtype, self.device = model, revision, dtype, device
        self.length_normalization, self.add_eos = length_normalization, add_eos
        self.max_prompt_tokens, self.truncate, self.batch_tokens = max_prompt_tokens, truncate, batch_tokens
        self.weights, self.four_bit, self.parity = weights, four_bit, parity
        self.prompt_special_tokens = not parity if prompt_special_tokens is None else prompt_special_tokens
        self._seed = 0 if seeds is None else seeds.integer("weights")
        drawn = {"pretrained": "", "embeddings": ", drawn weights but for its words", "random": ", drawn weights"}
        named = model if make is None else f"a small model that {make.told}"
        self.label = f"{named} (local scorer{drawn[weights]})"
        self._module: Any = None
        self._tokenizer: Any = None
        self._recompute = False
        self.together: ProcessGroup | None = (
            None  # processes that share the weights and must therefore make equally many passes
        )
        self._read: dict[str, TokenIds] = {}
        self._spelt: dict[tuple[str, tuple[str, ...]], tuple[TokenIds, ...]] = {}

    @property
    def module(self) -> torch.nn.Module:
        """Language model, for optimisers and adapters; loaded at first access."""
        self.load()
        module: torch.nn.Module = self._module
        return module

    def check(self) -> None:
        """Raise LLMError if transformers is missing or `model` can be neither a folder nor a hub name."""
        if self._make is None:
            check_model(self.model)
        else:
            check_installed(self.model)

    def load(self) -> None:
        """Load tokenizer and weights, unless loaded, and check tree scores against plain passes of the model.

        Raises:
            LLMError: tokenizer or weights cannot be loaded, or the architecture cannot be scored this way.
        """
        if self._module is not None:
            return
        if self._make is not None and self._workshop is not None:
            self._workshop.make(self.kind, self._make)
        self._tokenizer = load_tokenizer(self.model, self.revision)
        if self.add_eos and self._tokenizer.eos_token_id is None:
            raise LLMError(f"{self.label}: its tokenizer has no end-of-sequence token; set add_eos=false")
        module = load_model(
            self.kind, self.model, self.revision, self.device, self.dtype, self.weights, self._seed, self.four_bit
        )
        self._supported(module)
        self._module = module
        try:
            self._verify()
        except Exception:
            self._module = None
            raise

    def replace_module(self, module: torch.nn.Module) -> None:
        """Score with `module` from now on, a copy of the model, e.g. a frozen one."""
        self._module = module

    def recompute_activations(self) -> None:
        """Enable gradient checkpointing: less memory, about a third more time.

        Raises:
            LLMError: the model does not support it.
        """
        module: Any = self.module
        # Layers checkpoint in training mode only, so dropout is set to zero.
        for each in module.modules():
            for name, value in vars(each).items():
                if "dropout" in name and isinstance(value, float):
                    setattr(each, name, 0.0)
            if isinstance(each, torch.nn.Dropout):
                each.p = 0.0
        try:
            if hasattr(module, "activation_checkpointing_enable"):
                module.activation_checkpointing_enable()
            else:  # the former name; reentrant checkpoints give no gradient below frozen embeddings
                module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        except ValueError as error:
            raise LLMError(f"{self.label}: agent.recompute=true: {error}") from error
        self._recompute = True

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each prompt."""
        self.load()
        read = {prompt: self._parted(prompt)[0] for prompt in prompts}
        tokens = self._tokenize_prompts(list(dict.fromkeys(read.values())))
        return [len(tokens[read[prompt]]) for prompt in prompts]

    def score(self, prompts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]]) -> torch.Tensor:
        """Return log p(candidate | prompt), [n_prompts, n_candidates] float32 on the device.

        Args:
            prompts: prompts, at least one.
            candidates: candidates of all prompts, or a list for each; shorter lists are padded with -inf.

        Raises:
            ConfigError: no candidates, an empty candidate, or a prompt that is too long; the message names it.
            LLMError: the model cannot be loaded.
        """
        if not candidates:
            raise ConfigError("there are no candidates to score; give at least one text")
        return self.forward(prompts, candidates).log_probs

    def forward(self, prompts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]] = ()) -> ScorerOutput:
        """Return scores, as `score` does, with the state of each prompt; without candidates, the state alone."""
        self.load()
        if not prompts:
            raise ConfigError("there are no prompts to score; give at least one")
        lists = candidate_lists(len(prompts), candidates)
        queries, rows = self._queries(prompts, lists)
        n_candidates = max(len(texts) for texts in lists)
        batches = length_batches(queries, self.batch_tokens)
        passes = len(batches) if self.together is None else max(self.together.all_gather_object(len(batches)))
        results = [self._run([queries[i] for i in batch], n_candidates) for batch in batches]
        for _ in range(passes - len(batches)):
            extra = self._run([queries[batches[0][0]]], n_candidates)
            # Extra passes join the graph of the loss, so that backward passes are equally many, too.
            nothing = 0.0 * extra.state.sum()
            first = results[0]
            results[0] = replace(first, log_probs=first.log_probs + nothing, state=first.state + nothing)
        place = {query: place for place, query in enumerate(i for batch in batches for i in batch)}
        order = torch.tensor([place[row] for row in rows], device=results[0].log_probs.device)
        return ScorerOutput(
            torch.cat([result.log_probs for result in results])[order],
            torch.cat([result.state for result in results])[order],
            sum(result.tokens for result in results),
        )

    @abstractmethod
    def _supported(self, module: Any) -> None:
        """Raise LLMError if the architecture lacks what `_pass` needs."""

    @abstractmethod
    def _prompt_tokens(self, ids: list[int], special: list[int]) -> list[int]:
        """Return the tokens of a prompt that the model reads; `special` is 1 where the tokenizer added one to `ids`."""

    def _parted(self, prompt: str) -> tuple[str, str]:
        """Split a prompt into the part before its candidates and the part that begins each candidate."""
        return prompt, ""

    def _context(self, read: str) -> str:
        """Return the end of the prompt that affects the tokens of candidates."""
        return ""

    def _continued(self, context: str, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts that follow `context`."""
        return self._plain_tokens(texts)

    @abstractmethod
    def _longest_text(self) -> int | None:
        """Return the most tokens of prompt and candidate together that the model can read; None: no limit."""

    @abstractmethod
    def _pass(self, prompts: Sequence[TokenIds], trees: TreeBatch) -> ForwardPass:
        """Run the model once on a batch of prompts and the trees of their candidates."""

    @abstractmethod
    def _plain_logits(self, prompt: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        """Return logits [n_tokens, vocabulary] that predict `candidate` [n_tokens] after `prompt`, without a tree."""

    def _run(self, queries: Sequence[ScoringQuery], n_candidates: int) -> ScorerOutput:
        self._module.train(self._recompute and torch.is_grad_enabled())
        trees = TreeBatch.stack([query.tree for query in queries], n_candidates, self._module.device)
        result = self._pass([query.prompt for query in queries], trees)
        log_probs = trees.logit_sums(result.logits) if self.parity else trees.log_probs(result.logits)
        if self.length_normalization == "tokens":
            log_probs = log_probs / trees.length.clamp(min=1)
        elif self.length_normalization == "words":
            words = [[query.words[i] if i < len(query.words) else 1 for i in range(n_candidates)] for query in queries]
            log_probs = log_probs / torch.tensor(words, device=log_probs.device)
        return ScorerOutput(log_probs, result.state, result.tokens)

    def _queries(
        self, prompts: Sequence[str], lists: Sequence[tuple[str, ...]]
    ) -> tuple[list[ScoringQuery], list[int]]:
        """Return the distinct queries, and for each prompt the index of its query."""
        pairs = list(zip(prompts, lists, strict=True))
        distinct = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
        read = {prompt: self._parted(prompt) for prompt in prompts}
        tokens = self._tokenize_prompts(list(dict.fromkeys(before for before, _ in read.values())))
        words = {texts: tuple(max(len(text.split()), 1) for text in texts) for texts in dict.fromkeys(lists)}
        queries = [
            ScoringQuery(tokens[read[prompt][0]], token_tree(self._tokenize_candidates(prompt, texts)), words[texts])
            for prompt, texts in distinct
        ]
        rows = [distinct[pair] for pair in pairs]
        limit = self._longest_text()
        for (prompt, _), query in zip(distinct, queries, strict=True):
            if limit is not None and len(query.prompt) + query.tree.longest > limit:
                raise ConfigError(
                    f"a prompt has {len(query.prompt)} tokens and its longest candidate {query.tree.longest}, and "
                    f"{self.label} reads {limit}; {_SHORTER}, choose a model that reads more, or set "
                    f"llm.max_prompt_tokens={max(limit - query.tree.longest, 1)} and {_CUT}. "
                    f"The prompt: {_shortened(prompt)}"
                )
        return queries, rows

    def _tokenize_prompts(self, prompts: list[str]) -> dict[str, TokenIds]:
        if new := [prompt for prompt in prompts if prompt not in self._read]:
            if len(self._read) + len(new) > _KEPT:
                self._read = {prompt: self._read[prompt] for prompt in prompts if prompt in self._read}
            added = self.prompt_special_tokens
            encoded = self._tokenizer(new, add_special_tokens=added, return_special_tokens_mask=True)
            masks = encoded["special_tokens_mask"]
            for prompt, ids, special in zip(new, encoded["input_ids"], masks, strict=True):
                self._read[prompt] = self._cut(prompt, self._prompt_tokens(ids, special), special)
        return {prompt: self._read[prompt] for prompt in prompts}

    def _cut(self, prompt: str, tokens: list[int], special: list[int]) -> TokenIds:
        """Return a prompt's tokens, truncated to `max_prompt_tokens`; raise ConfigError if that is not allowed."""
        if not tokens:
            raise ConfigError(f"a prompt is empty ({prompt!r}): there is nothing to continue")
        excess = len(tokens) - (self.max_prompt_tokens or len(tokens))
        if excess > 0 and (self.truncate == "error" or excess > special.count(0)):
            raise ConfigError(
                f"a prompt has {len(tokens)} tokens, and llm.max_prompt_tokens={self.max_prompt_tokens}; raise it, "
                f"{_SHORTER}, or set {_CUT}. The prompt: {_shortened(prompt)}"
            )
        if excess > 0:
            start = special.index(0)  # special tokens before the text stay
            tokens = tokens[:start] + tokens[start + excess :]
        return tuple(tokens)

    def _tokenize_candidates(self, prompt: str, texts: tuple[str, ...]) -> tuple[TokenIds, ...]:
        if not texts:
            return ()
        read, moved = self._parted(prompt)
        key = self._context(read), tuple(f"{moved}{text}" for text in texts)
        if key not in self._spelt:
            encoded = self._continued(*key)
            for i, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
                if not text or not ids:
                    raise ConfigError(f"candidate {i} ({text!r}) is empty: it has no tokens to score")
            if len(self._spelt) >= _KEPT:
                self._spelt = {}
            end = (self._tokenizer.eos_token_id,) if self.add_eos else ()
            self._spelt[key] = tuple((*ids, *end) for ids in encoded)
        return self._spelt[key]

    def _plain_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts without special tokens."""
        encoded: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return encoded

    @torch.no_grad()
    def _verify(self) -> None:
        """Raise LLMError if the model ignores the tree's mask or positions, tested on a few tokens."""
        vocabulary = self._module.config.get_text_config().vocab_size
        prompts = [tuple(t % vocabulary for t in range(start, stop)) for start, stop in ((5, 16), (20, 25))]
        candidates = tuple(tuple(t % vocabulary for t in ids) for ids in ((31, 32, 33), (31, 34, 35), (36, 37), (38,)))
        tree = token_tree(candidates)
        trees = TreeBatch.stack([tree], len(candidates), self._module.device)
        fast = trees.log_probs(self._pass(prompts, trees).logits)
        rows = []
        for prompt in prompts:
            for ids in candidates:
                target = torch.tensor(ids, device=fast.device)
                logits = self._plain_logits(torch.tensor(prompt, device=fast.device), target)
                rows.append(logits.float().log_softmax(-1).gather(1, target[:, None]).sum())
        plain = torch.stack(rows).view_as(fast)
        exact = self.dtype == "float32" and not self.four_bit
        relative, absolute = (1e-3, 1e-2) if exact else (0.05, 0.5)
        if not torch.allclose(fast, plain, rtol=relative, atol=absolute):
            raise self._unsupported(
                self._module,
                "scoring all candidates in one pass does not give what one pass per candidate gives (largest "
                f"difference {float((fast - plain).abs().max()):.2g}), so it ignores masks or positions",
            )

    def _unsupported(self, module: Any, why: str) -> LLMError:
        works = "T5, Flan-T5, mT5" if self.kind == "seq2seq" else "Llama, Qwen, Mistral, GPT-2, Phi and most others"
        name = type(module).__name__
        return LLMError(f"{self.label}: {name} cannot be scored: {why}. {self.kind} models that work: {works}")


@contextmanager
def last_hidden_states(module: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the last decoder layer's output, [batch, n_positions, d], without keeping the other layers' outputs."""
    seen: list[torch.Tensor] = []
    handle = module.get_decoder().register_forward_hook(lambda _module, _args, output: seen.append(output[0]))
    try:
        yield seen
    finally:
        handle.remove()


def additive_mask(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask to add to attention scores: 0 where attention is allowed, elsewhere the dtype's lowest number."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:40]} ... {text[-40:]}")
