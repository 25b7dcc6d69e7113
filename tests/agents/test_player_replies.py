"""Parsing and repair of a model's replies."""

import pytest

from llmrl.core.errors import LLMError
from llmrl.core.records import ChatReply
from llmrl.core.spaces import ContinuousActions
from road_game import FunctionModel, GameSession, make_reply


class TestBadReplies:
    def test_invalid_reply_is_repaired(self):
        answers = iter(["jump", make_reply("jump"), make_reply("right")])
        table = GameSession(FunctionModel(lambda messages: next(answers)), repair_turns=2).start()
        act = table.step()
        assert act.action.tolist() == [[2]] and act.notes[0][0]["valid"]
        assert (act.notes[0][0]["replies"], act.notes[0][0]["invalid"]) == (3, 2)
        request_messages = table.model.requests[2].messages
        assert [m["role"] for m in request_messages] == ["system", "user", "assistant", "user", "assistant", "user"]
        assert '"left", "stay", "right"' in request_messages[-1]["content"]
        assert table.agent.metrics()["player/invalid_rate"] == pytest.approx(2 / 3)
        assert act.notes[0][0]["prompt_tokens"] == 30

    def test_missing_reflection_is_invalid(self):
        """Repair and count the reply; accept the action if no reflection is required."""
        answers = iter(['{"action": "left"}', make_reply("right")])
        table = GameSession(FunctionModel(lambda messages: next(answers))).start()
        act = table.step()
        assert act.action.tolist() == [[2]] and act.notes[0][0]["reflection"] == "why not"
        assert (act.notes[0][0]["replies"], act.notes[0][0]["invalid"]) == (2, 1)
        assert "the reflection is missing" in table.model.requests[1].messages[-1]["content"]
        for options in ({"require_reflection": False}, {"reflection": False}):
            act = GameSession(FunctionModel(lambda messages: '{"action": "left"}'), **options).start().step()
            assert act.action.tolist() == [[0]] and act.notes[0][0]["valid"] and act.notes[0][0]["replies"] == 1

    def test_last_action_is_repeated(self):
        answers = iter([make_reply("right"), "?", "?"])
        table = GameSession(FunctionModel(lambda messages: next(answers))).start()
        table.step()
        act = table.step()
        assert act.action.tolist() == [[2]] and not act.notes[0][0]["valid"]
        assert table.agent.metrics()["player/fallback_rate"] == 0.5

    def test_illegal_last_action_is_not_repeated(self):
        answers = iter([make_reply("right"), make_reply("right"), "?"])
        table = GameSession(FunctionModel(lambda messages: next(answers)), mask=True).start()
        table.step(mask=[False, True, True])
        act = table.step(mask=[False, True, False])
        assert act.action.tolist() == [[1]]

    def test_illegal_actions_pass_if_allowed(self):
        table = GameSession(FunctionModel(lambda messages: make_reply("right")), mask=True, require_legal=False).start()
        assert table.step(mask=[True, True, False]).action.tolist() == [[2]]
        assert "legal" not in table.model.requests[0].messages[0]["content"]

    def test_unparsable_replies(self):
        """Check that the history remains a valid conversation from the first reply on."""
        table = GameSession(FunctionModel(lambda messages: "\x00{"), n_envs=2, history=3).start()
        for _ in range(5):
            act = table.step()
        assert act.action.tolist() == [[0], [0]]
        metrics = table.agent.metrics()
        assert (metrics["player/fallback_rate"], metrics["player/invalid_rate"]) == (1.0, 1.0)
        assert metrics["llm/invalid_replies"] == len(table.model.requests) == 20

    def test_numbers(self):
        numbers = ContinuousActions(("a",), (-1.0,), (1.0,))
        answers = iter([make_reply({"speed": 0.456}), make_reply(7), make_reply(0.25), make_reply(9), make_reply(9)])
        table = GameSession(FunctionModel(lambda messages: next(answers)), numbers=numbers, decimals=1).start()
        assert table.step().action.tolist() == [[[pytest.approx(0.5)]]]
        assert table.step().action.tolist() == [[[pytest.approx(0.2)]]]  # rounded to even
        act = table.step()
        assert act.action.tolist() == [[[pytest.approx(0.2)]]] and not act.notes[0][0]["valid"]
        assert "speed must be from -1 to 1" in table.model.requests[-1].messages[-1]["content"]

    def test_failed_calls_are_no_replies(self):
        """Fail the second of three calls and count the default action."""
        model = FunctionModel()
        reply_function, model.calls = model.complete, 0

        def complete(requests):
            model.calls += 1
            return [ChatReply("", error="down")] if model.calls == 2 else reply_function(requests)

        model.complete = complete
        table = GameSession(model, failures="fall_back").start()
        for _ in range(3):
            act = table.step()
            if model.calls == 2:
                assert (act.notes[0][0]["replies"], act.notes[0][0]["invalid"], act.notes[0][0]["failed"]) == (0, 0, 1)
        metrics = table.policy.metrics()
        assert (metrics["player/failed_calls"], metrics["player/invalid_rate"]) == (1, 0)
        assert metrics["player/fallback_rate"] == pytest.approx(1 / 3)

    def test_unreachable_model_ends_run(self):
        class UnreachableModel(FunctionModel):
            def complete(self, requests):
                raise LLMError("down")

        with pytest.raises(LLMError, match="down"):
            GameSession(UnreachableModel()).start().step()
