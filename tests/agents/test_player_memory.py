"""Lessons that a player carries from episode to episode, and its state in checkpoints."""

import json

import numpy as np
import torch

from road_game import ACTIONS, FunctionModel, GameSession, make_reply


class TestLessons:
    def model(self):
        def answer(messages):
            prompt = messages[-1]["content"]
            return '{"lesson": "do not wait"}' if prompt.startswith("An episode is over.") else make_reply("stay")

        return FunctionModel(answer)

    def test_lessons_are_drawn_after_episode(self):
        """Request no lesson after the last episode."""
        table = GameSession(self.model(), lessons=2).start()
        table.step()
        table.step(ended=[0])
        assert [r.purpose for r in table.model.requests] == ["player"] * 2
        table.start()
        act = table.step()
        assert [r.purpose for r in table.model.requests] == ["player"] * 2 + ["lesson", "player"]
        lesson, question = table.model.requests[-2:]
        assert lesson.messages[0] == table.model.requests[0].messages[0]
        assert '{"x": 0}' in lesson.messages[1]["content"] and '"return": 2' in lesson.messages[1]["content"]
        assert question.messages[0]["content"].endswith("1. do not wait\n")
        assert question.messages[0]["content"].startswith(lesson.messages[0]["content"].rstrip())
        assert act.notes[0][0]["lesson"] == "do not wait" and act.notes[0][0]["lesson_cost"]["prompt_tokens"] == 10
        assert len(question.messages) == 2

    def test_newest_lessons_remain(self):
        number = iter(range(100))

        def answer(messages):
            if messages[-1]["content"].startswith("An episode is over."):
                return json.dumps({"lesson": f"lesson {next(number)}"})
            return make_reply("stay")

        table = GameSession(FunctionModel(answer), lessons=2)
        for _ in range(5):
            table.start().step(ended=[0])
        assert table.policy.conversations[0][0].lessons == ["lesson 2", "lesson 3"]

    def test_invalid_reply_adds_no_lesson(self):
        def answer(messages):
            is_final = any(m["content"].startswith("An episode is over.") for m in messages)
            return "no" if is_final else make_reply("stay")

        table = GameSession(FunctionModel(answer), lessons=2)
        for _ in range(2):
            table.start().step(ended=[0])
        assert table.policy.conversations[0][0].lessons == [] and table.agent.metrics()["player/lessons"] == 0
        assert table.agent.metrics()["llm/fallbacks"] == 1

    def test_counts_omitted_steps(self):
        table = GameSession(
            FunctionModel(
                lambda m: make_reply("stay") if "An episode is over" not in m[-1]["content"] else '{"lesson": "Go."}'
            ),
            lessons=1,
            history=60,
        ).start()
        for t in range(70):
            table.step(ended=(0,) if t == 69 else ())
        table.start().step()
        [prompt] = [r for r in table.model.requests if "An episode is over" in r.messages[-1]["content"]]
        text = prompt.messages[-1]["content"]
        assert "without the first 20 answers" in text and text.count('"action"') == 50

    def test_games_have_separate_memories(self):
        table = GameSession(self.model(), n_envs=2, lessons=1).start()
        table.step(ended=[0, 1])
        table.start(0).step()
        assert [players[0].lessons for players in table.policy.conversations] == [["do not wait"], []]


class TestState:
    def test_goes_on_exactly(self):
        def answer(messages):
            return "?" if "7" in messages[-1]["content"] else make_reply(ACTIONS[len(messages) % 3][0])

        options = {"n_envs": 2, "history": 3, "action_interval": 2, "lessons": 1}
        full_table, first = (GameSession(FunctionModel(answer), **options).start() for _ in range(2))
        for t in range(5):
            for table in (full_table, first):
                table.step(ended=[1] if t == 2 else ())
        second = GameSession(FunctionModel(answer), **options)
        second.agent.load_state_dict(json.loads(json.dumps(plain(first.agent.state_dict()))))
        second.t = first.t
        for t in range(8):
            if t == 3:
                for table in (full_table, second):
                    table.start(1)
            left, b = full_table.step(), second.step()
            assert left.notes == b.notes and torch.equal(left.action, b.action)
        assert plain(full_table.agent.state_dict()) == plain(second.agent.state_dict())

    def test_state_is_copy(self):
        table = GameSession(FunctionModel()).start()
        table.step()
        state = plain(table.agent.state_dict())
        state_text = json.dumps(state)
        table.step()
        assert json.dumps(state) == state_text


def plain(state):
    return {**state, "playing": np.asarray(state["playing"]).tolist()}
