"""Scores compared with one forward pass per pair of prompt and candidate."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.model_protocols import Scorer
from llmrl.core.seeding import Seeds
from models import make_causal_scorer, make_seq2seq_scorer
from some import mark_long_except

pytestmark = pytest.mark.slow

PROMPTS = [
    "Goal of the agent: pick up the grey box, then go to the grey key",
    "Goal: go",
    "Observation 0: You see a wall 2 steps left, You see a purple key 1 step left and 2 steps forward, Action 0: ",
    "Goal: go",
    "You carry a yellow ball",
]
CANDIDATES = ["turn left", "turn right", "go", "go forward", "toggle the purple key and turn left", "go", "p"]


class Reference:
    """Reference scorer without batches, padding or masks.

    Each pair requires a forward pass over the tokens of the concatenation of prompt and candidate.
    """

    def __init__(self, folder, kind, dtype=torch.float32):
        auto = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
        self.kind, self.tokenizer = kind, AutoTokenizer.from_pretrained(folder)
        self.model = auto.from_pretrained(folder, dtype=dtype).eval()

    def tokens(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def candidate_ids(self, prompt, candidate):
        if self.kind == "seq2seq":
            return self.tokens(candidate.lstrip(" "))
        prefix, full = self.tokens(prompt.rstrip(" ")), self.tokens(prompt + candidate)
        if full[: len(prefix)] == prefix:
            return full[len(prefix) :]
        return self.tokens(" " * (len(prompt) - len(prompt.rstrip(" "))) + candidate)

    def prompt_ids(self, prompt):
        text = self.tokens(prompt if self.kind == "seq2seq" else prompt.rstrip(" "))
        if self.kind == "seq2seq":
            return [*text, self.tokenizer.eos_token_id]
        return [self.tokenizer.bos_token_id, *text] if self.model.config.model_type == "llama" else text

    def token_log_probs(self, prompt, candidate):
        ids = torch.tensor(self.candidate_ids(prompt, candidate))
        prompt = torch.tensor(self.prompt_ids(prompt))
        if self.kind == "seq2seq":
            inputs = torch.cat([torch.tensor([self.model.config.decoder_start_token_id]), ids[:-1]])
            logits = self.model(input_ids=prompt[None], decoder_input_ids=inputs[None]).logits[0]
        else:
            logits = self.model(input_ids=torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
        return logits.float().log_softmax(-1)[range(len(ids)), ids]

    def score(self, prompts, candidates):
        return torch.stack([torch.stack([self.token_log_probs(p, c).sum() for c in candidates]) for p in prompts])

    def first_token(self, prompt):
        """Return the distribution of the token after a prompt."""
        ids = torch.tensor(self.prompt_ids(prompt))[None]
        if self.kind == "seq2seq":
            start = torch.tensor([[self.model.config.decoder_start_token_id]])
            return self.model(input_ids=ids, decoder_input_ids=start).logits[0, -1].softmax(-1)
        return self.model(input_ids=ids).logits[0, -1].softmax(-1)

    def state(self, prompt):
        ids = torch.tensor(self.prompt_ids(prompt))[None]
        if self.kind == "seq2seq":
            start = torch.tensor([[self.model.config.decoder_start_token_id]])
            output = self.model(input_ids=ids, decoder_input_ids=start, output_hidden_states=True)
            return output.decoder_hidden_states[-1][0, 0]
        return self.model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, -1]


@pytest.fixture(params=mark_long_except(["t5", "llama"], ["t5", "llama", "gpt2"]))
def case(request):
    """Return a factory of scorers of an architecture, and the reference scorer."""
    folder = request.getfixturevalue(f"{request.param}_folder")
    scorer, kind = (make_seq2seq_scorer, "seq2seq") if request.param == "t5" else (make_causal_scorer, "causal")

    def make(**options):
        return scorer(folder, **options)

    return make, Reference(folder, kind)


def largest(difference):
    return float(difference.detach().abs().max())


def test_scores_match_single_passes(case):
    make, reference = case
    scorer = make()
    with torch.no_grad():
        scores, references = scorer.score(PROMPTS, CANDIDATES), reference.score(PROMPTS, CANDIDATES)
    assert scores.shape == (5, 7) and scores.dtype == torch.float32 and not scores.requires_grad
    assert largest(scores - references) < 1e-5
    assert references.std() > 1  # so that the agreement says something
    assert isinstance(scorer, Scorer)


def test_gradients_match_single_passes(case):
    make, reference = case
    scorer = make(batch_tokens=100)
    weights = torch.randn(len(PROMPTS), len(CANDIDATES), generator=torch.Generator().manual_seed(0))
    (scorer.score(PROMPTS, CANDIDATES) * weights).mean().backward()
    (reference.score(PROMPTS, CANDIDATES) * weights).mean().backward()
    references = {name: weight.grad for name, weight in reference.model.named_parameters()}
    actual = {name: weight.grad for name, weight in scorer.module.named_parameters()}
    assert actual.keys() == references.keys() and len(actual) > 10
    for name, gradient in references.items():
        assert largest(gradient) > 0, name
        assert largest(actual[name] - gradient) < 1e-5, name


@pytest.mark.parametrize("batch_tokens", mark_long_except([1, 150], [1, 60, 150, 10_000]))
def test_token_budget_keeps_scores(case, batch_tokens):
    make, reference = case
    scorer = make(batch_tokens=batch_tokens)
    with torch.no_grad():
        output, reference_output = scorer.forward(PROMPTS, CANDIDATES), make().forward(PROMPTS, CANDIDATES)
        assert largest(output.log_probs - reference.score(PROMPTS, CANDIDATES)) < 1e-5
    assert largest(output.state - reference_output.state) < 1e-5
    assert output.n_positions <= reference_output.n_positions  # less padding in smaller batches


def test_score_is_batch_invariant(case):
    make, _ = case
    scorer = make()
    with torch.no_grad():
        batched = scorer.score(PROMPTS, CANDIDATES)
        for i, prompt in enumerate(PROMPTS):
            for j, candidate in enumerate(CANDIDATES):
                assert largest(scorer.score([prompt], [candidate]) - batched[i, j]) < 1e-5


def test_duplicates_are_free(case):
    make, _ = case
    scorer = make()
    with torch.no_grad():
        single, repeated = (
            scorer.forward(PROMPTS[:3], ["go", "turn left"]),
            scorer.forward(PROMPTS[:3] * 4, ["go", "turn left"] * 9),
        )
    assert repeated.n_positions == single.n_positions
    assert torch.equal(repeated.log_probs, single.log_probs.repeat(4, 9))


def test_candidates_per_prompt(case):
    make, reference = case
    lists = [["turn left", "go"], ["go forward"], ["toggle", "go", "go forward now"], ["go", "pick up"], ["p"]]
    for budget in (60, 10_000):
        output = make(batch_tokens=budget).forward(PROMPTS, lists)
        assert output.log_probs.shape == (5, 3)
        for i, texts in enumerate(lists):
            row = reference.score([PROMPTS[i]], texts)[0]
            assert largest(output.log_probs[i, : len(texts)] - row) < 1e-5
            assert torch.isneginf(output.log_probs[i, len(texts) :]).all()
        output.log_probs.exp().sum().backward()  # padding sends no NaN back


def test_state_is_the_hidden_state_at_the_prompt(case):
    make, reference = case
    scorer = make()
    output = scorer.forward(PROMPTS, CANDIDATES)
    for i, prompt in enumerate(PROMPTS):
        assert largest(output.state[i] - reference.state(prompt)) < 1e-5
    states = scorer.forward(PROMPTS)
    assert states.log_probs.shape == (5, 0)
    assert largest(states.state - output.state) < 1e-5
    assert output.state.requires_grad


def test_length_normalization_is_token_mean(case):
    make, reference = case
    scores = make(length_normalization="tokens").score(PROMPTS[:2], CANDIDATES)
    for i, prompt in enumerate(PROMPTS[:2]):
        for j, candidate in enumerate(CANDIDATES):
            assert largest(scores[i, j] - reference.token_log_probs(prompt, candidate).mean()) < 1e-5


def test_token_probabilities_sum_to_1(case):
    make, reference = case
    scorer = make()
    tokenizer = reference.tokenizer
    texts = {i: tokenizer.decode([i]) for i in range(len(tokenizer))}
    # Tokens that a text can stand for: those that tokenize to themselves.
    texts = {i: text for i, text in texts.items() if tokenizer(text, add_special_tokens=False)["input_ids"] == [i]}
    assert len(texts) == len(tokenizer)
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[4]]
    if reference.kind == "seq2seq":  # of a text with a space in front it scores the rest
        texts = {i: text for i, text in texts.items() if not text.startswith(" ")}
    with torch.no_grad():
        total = scorer.score(prompts, list(texts.values())).exp().sum(-1)
        references = torch.tensor([reference.first_token(prompt)[list(texts)].sum() for prompt in prompts])
    assert largest(total - references) < 1e-5
    assert reference.kind == "seq2seq" or largest(total - 1) < 1e-5


def test_dropout_is_inactive(case):
    make, _ = case
    scorer = make()
    assert not scorer.module.training
    with torch.no_grad():
        original = scorer.score(PROMPTS, CANDIDATES)
        scorer.module.train()
        assert torch.equal(scorer.score(PROMPTS, CANDIDATES), original)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(case, dtype):
    make, reference = case
    with torch.no_grad():
        scores, references = make(dtype=dtype).score(PROMPTS, CANDIDATES), reference.score(PROMPTS, CANDIDATES)
    assert scores.dtype == torch.float32
    # Eight bits of mantissa: about a hundredth of a score.
    assert largest((scores - references) / references) < 0.05
    assert torch.corrcoef(torch.stack([scores.flatten(), references.flatten()]))[0, 1] > 0.999


words = st.sampled_from(["turn", "left", "right", "go", "the grey key", "2", ",", "zé", "\n"])


def text(max_words):
    return st.lists(words, min_size=1, max_size=max_words).map(" ".join)


def test_any_texts(case):
    make, reference = case
    scorer = make()

    @settings(max_examples=20)
    @given(
        prompts=st.lists(text(8), min_size=1, max_size=5),
        candidates=st.lists(text(3), min_size=1, max_size=6),
        batch_tokens=st.integers(1, 200),
    )
    def holds(prompts, candidates, batch_tokens):
        scorer.settings = replace(scorer.settings, batch_tokens=batch_tokens)
        with torch.no_grad():
            scores = scorer.score(prompts, candidates)
            references = reference.score(prompts, candidates)
            torch.testing.assert_close(scores, references, rtol=1e-6, atol=1e-5)  # float32 has 1.2e-7

    holds()


def test_the_option_files_build_scorers(t5_folder, llama_folder):
    from llmrl.config.builder import Builder
    from llmrl.core.option_files import load_options
    from llmrl.core.services import ModelServices

    services = ModelServices(Seeds(0), "cpu")
    for name, folder in (("local_scorer_seq2seq", t5_folder), ("local_scorer_causal", llama_folder)):
        option = load_options("llm")[name]
        scorer = Builder(services).build(option, "llm")
        assert isinstance(scorer, Scorer) and scorer.label == f"{option['model']} (local scorer)"
        scorer.check()
        with pytest.raises(ConfigError, match=r"llm.batch_tokens=0"):
            Builder(services).build({**option, "batch_tokens": 0}, "llm")
        scorer = Builder(services).build({**option, "model": str(folder)}, "llm")
        assert scorer.score(["go"], ["left", "right"]).shape == (1, 2)


@pytest.mark.parametrize(
    ("prompts", "candidates", "message"),
    [
        ([], ["go"], "no prompts"),
        (["a"], [], "no candidates"),
        (["a"], "go", "one text"),
        (["a"], ["go", ""], r"candidate 1 \(''\)"),
        (["a", "b"], [["go"]], "1 lists .* 2 prompts"),
        (["a", "b"], [["go"], []], "prompt 1 "),
        (["a", "b"], [["go"], "go"], "mixes"),
    ],
)
def test_bad_arguments_raise(case, prompts, candidates, message):
    with pytest.raises(ConfigError, match=message):
        case[0]().score(prompts, candidates)


def test_empty_prompt_needs_special_token(t5_folder, llama_folder, gpt2_folder):
    assert make_seq2seq_scorer(t5_folder).score([""], ["go"]).isfinite().all()
    assert make_causal_scorer(llama_folder).score([""], ["go"]).isfinite().all()
    with pytest.raises(ConfigError, match=r"prompt .*\(''\)"):
        make_causal_scorer(gpt2_folder).score([""], ["go"])


def test_texts_exceed_model_context(gpt2_folder):
    scorer, reference = make_causal_scorer(gpt2_folder), Reference(gpt2_folder, "causal")
    ids = reference.prompt_ids(" go" * 126)
    assert len(ids) == 126
    with pytest.raises(ConfigError, match=r" 126 tokens .* 3, .* 128; .*env\.history.*: ' go go .* \.\.\. "):
        scorer.score(["go", " go" * 126], [" go go go"])
    # Each text alone counts, not the longest prompt of a batch with the longest candidate of another.
    prompts, lists = ["go", " go" * 126], [[" go" * 126], [" go go"]]
    scores = scorer.score(prompts, lists)
    for i in range(2):
        assert largest(scores[i, :1] - reference.score(prompts[i : i + 1], lists[i])[0]) < 1e-4  # 126 terms


def test_position_invariant_model_raises(llama_folder, monkeypatch):
    from transformers.models.llama.modeling_llama import LlamaModel

    forward = LlamaModel.forward
    monkeypatch.setattr(LlamaModel, "forward", lambda self, *a, position_ids=None, **kw: forward(self, *a, **kw))
    scorer = make_causal_scorer(llama_folder)
    for _ in range(2):  # and stays refused
        with pytest.raises(LLMError, match="LlamaForCausalLM"):
            scorer.score(["go"], ["go"])


def test_wrong_model_type_raises(t5_folder, tmp_path):
    from transformers import BartConfig, BartForConditionalGeneration

    with pytest.raises(LLMError, match=f"{t5_folder}: .*causal"):
        make_causal_scorer(t5_folder).load()
    AutoTokenizer.from_pretrained(t5_folder).save_pretrained(tmp_path)
    small = {
        f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")
    }
    BartForConditionalGeneration(BartConfig(vocab_size=99, d_model=8, **small)).save_pretrained(tmp_path)
    with pytest.raises(LLMError, match=r"BartForConditionalGeneration.*T5"):
        make_seq2seq_scorer(tmp_path).load()
