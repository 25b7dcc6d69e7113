import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.algorithms.q_learning import ReplayBuffer, Transitions


def transitions(numbers, texts=lambda i: f"text {i}", legal=False):
    """Return one transition for each number, identified by its reward."""
    n = len(numbers)
    return Transitions(
        prompt=[texts(i).encode() for i in numbers],
        action=np.array(numbers) % 3,
        reward=np.array(numbers, dtype=np.float32),
        next_prompt=[texts(i + 1).encode() for i in numbers],
        terminal=np.array(numbers) % 4 == 0,
        next_action_mask=np.ones((n, 3), dtype=bool) if legal else None,
    )


def sample_all(replay, draws=4000):
    return replay.sample(draws, torch.Generator().manual_seed(1))


@settings(max_examples=30)
@given(st.integers(1, 9), st.lists(st.integers(1, 14), min_size=1, max_size=8))
def test_memory_holds_newest_transitions(capacity, sizes):
    replay, added = ReplayBuffer(capacity), 0
    for size in sizes:
        replay.add(transitions(list(range(added, added + size))))
        added += size
    samples = sample_all(replay, 500)
    assert len(replay) == min(added, capacity)
    assert set(samples.reward.astype(int)) == set(range(max(0, added - capacity), added))
    for i, number in enumerate(samples.reward.astype(int).tolist()):
        assert (
            samples.prompt[i] == f"text {number}".encode() and samples.next_prompt[i] == f"text {number + 1}".encode()
        )
        assert samples.action[i] == number % 3 and samples.terminal[i] == (number % 4 == 0)


def test_sampling_is_uniform():
    replay = ReplayBuffer(100)
    for start in range(0, 250, 10):  # it has been full for long, and its newest is not in its last place
        replay.add(transitions(list(range(start, start + 10))))
    n = 40_000
    counts = np.bincount(sample_all(replay, n).reward.astype(int), minlength=250)
    assert counts[:150].sum() == 0
    # Of 100 binomial counts with mean 400 and deviation 19.9 none is further than 4.5 deviations away.
    assert np.abs(counts[150:] - n / 100).max() < 4.5 * np.sqrt(n / 100 * 0.99)


def test_sampling_uses_generator():
    replay = ReplayBuffer(50)
    replay.add(transitions(list(range(30))))
    first, second = (replay.sample(20, torch.Generator().manual_seed(5)).reward for _ in range(2))
    different_samples = replay.sample(20, torch.Generator().manual_seed(6)).reward
    assert (first == second).all() and (first != different_samples).any()


@pytest.mark.parametrize("added", [0, 7, 23])
def test_state_restores_sampling(added):
    first, second = ReplayBuffer(10), ReplayBuffer(10)
    first.add(transitions(list(range(added)), legal=True))
    second.load_state_dict(first.state_dict())
    for replay in (first, second):
        replay.add(transitions([100, 101, 102], legal=True))
    left, b = sample_all(first), sample_all(second)
    assert list(left.prompt) == list(b.prompt) and list(left.next_prompt) == list(b.next_prompt)
    assert (left.reward == b.reward).all() and (left.next_action_mask == b.next_action_mask).all()


def test_state_is_smaller_than_prompts():
    replay = ReplayBuffer(2000)
    long = "possible action of the agent turn left turn right go forward " * 10
    replay.add(transitions(list(range(2000)), texts=lambda i: f"{long} {i}"))
    state = replay.state_dict()
    assert state["texts"].nbytes < 0.05 * 2000 * len(long)


def test_empty_memory_rejects_sampling():
    with pytest.raises(ValueError, match="empty"):
        ReplayBuffer(10).sample(1, torch.Generator())
