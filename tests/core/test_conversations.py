"""Merging of conversations with chat models."""

from __future__ import annotations

import pytest

from llmrl.core.model_protocols import merge_conversations, run_conversation


def ask(*batches):
    """Return a conversation that sends the batches of requests, and results in its replies."""
    replies = []
    for batch in batches:
        replies.append((yield batch))
    return replies


def test_replies_reach_their_conversations():
    batches = []

    def reply(requests):
        batches.append(list(requests))
        return [request.upper() for request in requests]

    merged = merge_conversations([ask(["a", "b"], ["c"]), ask(), ask([], ["d", "e"])])
    assert run_conversation(merged, reply) == [[["A", "B"], ["C"]], [], [[], ["D", "E"]]]
    assert batches == [["a", "b"], ["c", "d", "e"]]


@pytest.mark.parametrize("n_replies", [0, 1, 3])
def test_numbers_of_requests_and_replies_must_be_equal(n_replies):
    with pytest.raises(ValueError, match="2"):
        run_conversation(merge_conversations([ask(["a"]), ask(["b"])]), lambda requests: ["x"] * n_replies)
