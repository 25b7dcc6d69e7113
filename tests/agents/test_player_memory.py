"""What a player keeps: lessons from episode to episode, and everything from a checkpoint on."""

import json

import numpy as np
import torch

from road_game import ACTIONS, Model, Table, reply


class TestLessons:
    def model(self):
        def answer(messages):
            asked = messages[-1]["content"]
            return '{"lesson": "do not wait"}' if asked.startswith("An episode is over.") else reply("stay")

        return Model(answer)

    def test_drawn_once_another_episode_begins(self):
        """Not after the last one, which nobody would learn from."""
        table = Table(self.model(), lessons=2).start()
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
        assert act.notes[0][0]["lesson"] == "do not wait" and act.notes[0][0]["lesson_took"]["prompt_tokens"] == 10
        assert len(question.messages) == 2

    def test_the_newest_are_kept(self):
        number = iter(range(100))

        def answer(messages):
            if messages[-1]["content"].startswith("An episode is over."):
                return json.dumps({"lesson": f"lesson {next(number)}"})
            return reply("stay")

        table = Table(Model(answer), lessons=2)
        for _ in range(5):
            table.start().step(ended=[0])
        assert table.policy.seats[0][0].lessons == ["lesson 2", "lesson 3"]

    def test_none_if_the_reply_is_no_lesson(self):
        def answer(messages):
            over = any(m["content"].startswith("An episode is over.") for m in messages)
            return "no" if over else reply("stay")

        table = Table(Model(answer), lessons=2)
        for _ in range(2):
            table.start().step(ended=[0])
        assert table.policy.seats[0][0].lessons == [] and table.agent.metrics()["player/lessons"] == 0
        assert table.agent.metrics()["llm/fallbacks"] == 1

    def test_how_much_of_the_episode_is_left_out(self):
        table = Table(
            Model(lambda m: reply("stay") if "An episode is over" not in m[-1]["content"] else '{"lesson": "Go."}'),
            lessons=1,
            history=60,
        ).start()
        for t in range(70):
            table.step(ended=(0,) if t == 69 else ())
        table.start().step()
        [asked] = [r for r in table.model.requests if "An episode is over" in r.messages[-1]["content"]]
        told = asked.messages[-1]["content"]
        assert "without the first 20 answers" in told and told.count('"action"') == 50

    def test_each_game_its_own(self):
        table = Table(self.model(), n_envs=2, lessons=1).start()
        table.step(ended=[0, 1])
        table.start(0).step()
        assert [seat[0].lessons for seat in table.policy.seats] == [["do not wait"], []]


class TestState:
    def test_goes_on_exactly(self):
        def answer(messages):
            return "?" if "7" in messages[-1]["content"] else reply(ACTIONS[len(messages) % 3][0])

        options = {"n_envs": 2, "history": 3, "action_every": 2, "lessons": 1}
        whole, first = (Table(Model(answer), **options).start() for _ in range(2))
        for t in range(5):
            for table in (whole, first):
                table.step(ended=[1] if t == 2 else ())
        second = Table(Model(answer), **options)
        second.agent.load_state_dict(json.loads(json.dumps(plain(first.agent.state_dict()))))
        second.t = first.t
        for t in range(8):
            if t == 3:
                for table in (whole, second):
                    table.start(1)
            a, b = whole.step(), second.step()
            assert a.notes == b.notes and torch.equal(a.action, b.action)
        assert plain(whole.agent.state_dict()) == plain(second.agent.state_dict())

    def test_it_is_a_copy(self):
        table = Table(Model()).start()
        table.step()
        state = plain(table.agent.state_dict())
        kept = json.dumps(state)
        table.step()
        assert json.dumps(state) == kept


def plain(state):
    return {**state, "playing": np.asarray(state["playing"]).tolist()}
