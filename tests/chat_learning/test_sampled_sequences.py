"""Token sequences of sampled replies, from chat templates of both kinds."""

from contextlib import nullcontext

import numpy as np
import pytest

from learning_chats import FORGETFUL_TEMPLATE, QUESTIONS, compute_log_probs, make_request
from llmrl.core.records import TokenSample
from llmrl.llms.local.learning import build_token_sequences


class Recorder:
    """Settings of learners that only record."""

    def learners(self, chat, seeds):
        self._seeds = seeds
        return self

    def seeds(self, adapter):
        return self._seeds

    def use_adapters(self, adapters):
        return nullcontext()


@pytest.fixture
def template(request, tmp_path):
    if request.param == "complete":
        return None
    file = tmp_path / "template.jinja"
    file.write_text(FORGETFUL_TEMPLATE)
    return str(file)


@pytest.mark.parametrize(("template", "n_sequences"), [("complete", 1), ("forgetful", 3)], indirect=["template"])
def test_sequences_of_conversation(template, n_sequences, make_chat):
    """A conversation is one sequence if the template keeps its beginning; log-probabilities equal those of sampling."""
    chat = make_chat(chat_template=template, learn=Recorder())
    contents, samples = [], []
    for k in range(3):
        contents.append(QUESTIONS[k % 2])
        [reply] = chat.complete([make_request(*contents)])
        # Tokens are compared, so a reply that does not survive decoding would begin a new sequence.
        contents.append('{"action": "left"}')
        ids = tuple(chat.encode_reply(make_request(*contents[:-1]).messages, contents[-1]))
        samples.append(TokenSample(reply.sample.prompt, ids, np.zeros(len(ids), np.float32)))
    sequences = build_token_sequences(samples, first_reply_index=5)
    assert len(sequences) == n_sequences
    assert np.concatenate([s.reply_indices for s in sequences]).tolist() == [
        5 + i for i, turn_sample in enumerate(samples) for _ in turn_sample.tokens
    ]
    tokens = [np.array(s.tokens)[s.positions] for s in sequences]
    assert np.concatenate(tokens).tolist() == [token for turn_sample in samples for token in turn_sample.tokens]


def test_sampled_log_probs_equal_plain_passes(make_chat):
    chat = make_chat(learn=Recorder())
    replies = chat.complete([make_request(QUESTIONS[i % 2], repeat=i) for i in range(6)])
    for reply in replies:
        sequences = build_token_sequences([reply.sample])
        [expected] = compute_log_probs(chat, sequences)
        np.testing.assert_allclose(sequences[0].log_probs, expected, atol=1e-5)
        assert reply.completion_tokens == len(reply.sample.tokens)


def test_reply_has_no_sample_without_learner(make_chat):
    [reply] = make_chat().complete([make_request(QUESTIONS[0])])
    assert reply.sample is None
