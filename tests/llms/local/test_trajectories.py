"""Trajectories of replies and their merged token sequences."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.records import TokenSample
from llmrl.llms.local.learning import TrajectoryBuffer, build_token_sequences, group_mergeable_turns


def sample(prompt, tokens):
    return TokenSample(tuple(prompt), tuple(tokens), np.zeros(len(tokens), np.float32))


def add(buffer, game):
    buffer.add_reply(game, 0, sample([1, 2], [3]), "x", True, 0)


def test_merge_turns():
    first, second = sample([1, 2], [3]), sample([1, 2, 3, 4], [5])
    assert group_mergeable_turns([first, second]) == [[0, 1]]
    assert group_mergeable_turns([first, sample([1, 2, 4], [5]), sample([1, 2, 4, 5, 6], [7])]) == [[0], [1, 2]]


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.booleans()), min_size=1, max_size=5))
def test_merged_sequences_contain_each_reply(turns):
    samples, history = [], ()
    for tokens, keeps_history in turns:
        prompt = (*(history if keeps_history else ()), 9)
        samples.append(sample(prompt, tokens))
        history = (*prompt, *tokens)
    sequences = build_token_sequences(samples)
    for i, original in enumerate(samples):
        [sequence] = [s for s in sequences if i in s.reply_indices]
        positions = sequence.positions[sequence.reply_indices == i]
        assert tuple(np.array(sequence.tokens)[positions]) == original.tokens
        assert sequence.tokens[: positions[0]] == original.prompt


def test_buffer():
    buffer = TrajectoryBuffer()
    buffer.add_reward(0, 0, 5.0)  # before any reply
    add(buffer, 1)
    add(buffer, 0)
    buffer.add_reward(0, 0, 1.0)
    add(buffer, 0)
    buffer.add_reward(0, 0, 2.0)
    buffer.end_episode(1)
    assert [t.game for t in buffer.pop_complete()] == [1]
    buffer.end_episode(0)
    restored = TrajectoryBuffer()
    add(restored, 1)
    restored.load_state_dict(buffer.state_dict())
    for each in (buffer, restored):
        [trajectory] = each.pop_complete()
        assert [t.reward for t in trajectory.turns] == [1.0, 2.0]
        assert not each.pop_complete()
    add(buffer, 0)
    buffer.begin_episodes([0])
    buffer.end_episode(0)
    assert not buffer.pop_complete()
