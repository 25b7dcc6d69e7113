"""What a model is asked, who is asked, and what fits into a question."""

import copy
import itertools
import json
import os
import re

import pytest

from llmrl.agents.llm_player.agent import LLMPlayer
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.spaces import Channel, ContinuousActions, EnvSpec
from llmrl.llms.client import ChatClient
from road_game import Model, Table, first_legal, reply

SPEED = ContinuousActions(("a",), (-1.0,), (1.0,))


class TestTheConversation:
    def test_turns_alternate_and_are_json(self):
        table = Table(Model(), history=2, sliding_history=True).start()
        for _ in range(5):
            table.step()
        roles = [role for role, _ in table.last]
        assert roles == ["user", "assistant"] * 2 + ["user"]
        assert [content["observation"]["x"] for role, content in table.last if role == "user"] == [2, 3, 4]
        assert table.last[1][1] == {"reflection": "why not", "action": "stay"}
        assert [len(r.messages) for r in table.model.requests] == [2, 4, 6, 6, 6]

    def test_the_history_grows_and_is_cut_back(self):
        """To less than twice its size, then to its size: most questions begin with all of the one before."""
        table = Table(Model(), history=3).start()
        for _ in range(12):
            table.step()
        asked = [r.messages for r in table.model.requests]
        assert [(len(messages) - 2) // 2 for messages in asked] == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
        goes_on = [new[: len(old)] == old for old, new in itertools.pairwise(asked)]
        assert goes_on == [True] * 5 + [False, True, True] * 2

    def test_most_of_what_is_told_was_told_before(self):
        """A provider keeps what a question has in common with the one before."""
        shares = {}
        for sliding in (True, False):
            table = Table(Model(), sliding_history=sliding).start()
            for _ in range(100):
                table.step(text=json.dumps({"x": "far away " * 20}))
            texts = [json.dumps(r.messages) for r in table.model.requests]
            same = [len(os.path.commonprefix(pair)) for pair in itertools.pairwise(texts)]  # noqa: RUF071
            shares[sliding] = sum(same) / sum(map(len, texts))
        assert shares[True] < 0.45 < 0.8 < shares[False]

    def test_what_was_done_without_a_reply_is_not_put_into_the_players_mouth(self):
        answers = iter([reply("right"), "?", "?", reply("left")])
        table = Table(Model(lambda messages: next(answers))).start()
        for _ in range(3):
            table.step()
        *_, said, now = table.model.requests[-1].messages
        assert said == {"role": "assistant", "content": "(no usable reply)"}
        told = json.loads(now["content"])
        assert told["no_usable_reply"] == 'your last reply could not be used; done instead: "right"'
        table.model.answer = lambda messages: reply("stay")
        table.step()
        assert "no_usable_reply" not in table.model.requests[-1].messages[-1]["content"]

    def test_examples_are_not_always_the_first_action(self):
        system = Table(Model()).policy.system[0].text
        shown = re.findall(r'"action": "(\w+)"', system)
        assert len(set(shown)) == 2 and "stay" in shown

    def test_a_plan_survives_the_window(self):
        """It is told again as soon as no turn that is shown has it, once, and until there is another one."""

        def answer(messages):
            x = json.loads(messages[-1]["content"])["observation"]["x"]
            return json.dumps({"reflection": "r", "plan": {0: "go far", 9: "go back"}.get(x, ""), "action": "stay"})

        table = Table(Model(answer), history=2, plan=True).start()
        for _ in range(12):
            table.step()
        asked = [[m["content"] for m in r.messages[1:]] for r in table.model.requests]
        # Turns shown: 0, 1, 2, 3, 2, 3, 2, ...: the first turn, with the plan in it, is out of sight from the fifth on.
        assert ["your_plan" in messages[-1] for messages in asked] == [k in (4, 8) for k in range(12)]
        assert all('"go far"' in "".join(messages) for messages in asked[1:10])
        assert all('"plan": "go back"' in "".join(messages).replace("\\", "") for messages in asked[10:])
        assert json.loads(asked[4][-1])["your_plan"] == "go far"
        assert json.loads(asked[1][1]) == {"reflection": "r", "plan": "go far", "action": "stay"}
        assert "plan" not in json.loads(asked[2][3]), "nothing was written, and nothing is put into its mouth"
        properties = table.model.requests[0].schema["properties"]
        assert list(properties) == ["reflection", "plan", "action"]
        table.step(ended=[0])
        table.start().step()
        assert "go back" not in str(table.model.requests[-1].messages), "a plan is of its episode"

    @pytest.mark.parametrize("sliding", [False, True])
    def test_a_plan_is_always_in_sight(self, sliding):
        """With any history, and after a resume in the middle."""
        plans = {0: "first", 7: "second", 8: "third"}

        def answer(messages):
            x = json.loads(messages[-1]["content"])["observation"]["x"]
            return json.dumps({"reflection": "r", "plan": plans.get(x, ""), "action": "stay"}) if x % 5 else "?"

        for history in range(4):
            model = Model(answer)
            table = Table(model, history=history, sliding_history=sliding, plan=True, repair_turns=0).start()
            newest = ""
            for x in range(14):
                if x == 6:
                    table.policy.load_state_dict(copy.deepcopy(table.policy.state_dict()))
                table.step()
                assert newest in str(model.requests[-1].messages[1:])
                newest = plans.get(x, newest) if x % 5 else newest

    def test_nothing_is_said_of_plans_unless_asked(self):
        table = Table(Model()).start()
        table.step()
        assert "plan" not in str(table.model.requests[0].messages) + str(table.model.requests[0].schema)

    def test_no_history(self):
        table = Table(Model(), history=0).start()
        for _ in range(3):
            table.step()
        assert [len(r.messages) for r in table.model.requests] == [2, 2, 2]

    def test_the_system_message_never_changes(self):
        """So that a provider's cache has the whole of it."""
        table = Table(Model(), n_envs=2, history=3).start()
        for _ in range(6):
            table.step()
        assert len({r.messages[0]["content"] for r in table.model.requests}) == 1

    def test_what_is_shown(self):
        table = Table(Model(), show=["step", "reward", "return"]).start()
        for _ in range(3):
            table.step(reward=-0.5)
        first, third = table.last[0][1], table.last[-1][1]
        assert first == {"observation": {"x": 0}, "start": True, "step": 0, "return": 0}
        assert third == {"observation": {"x": 2}, "step": 2, "reward": -0.5, "return": -1}
        bare = Table(Model(), show=[]).start()
        bare.step()
        bare.step()
        assert bare.last[-1][1] == {"observation": {"x": 1}}
        assert '"reward"' not in bare.model.requests[0].messages[0]["content"]

    def test_the_last_episode_is_told(self):
        table = Table(Model(), show=["return", "last_episode"]).start()
        table.step()
        table.step(ended=[0], reward=-3, terminated=False)
        table.start().step()
        assert table.last[-1][1]["last_episode"] == {"return": -2, "steps": 2, "end": "the time was up"}
        assert len(table.last) == 1, "an episode begins with an empty history"

    def test_but_only_if_it_is_asked_for(self):
        table = Table(Model()).start()
        table.step(ended=[0])
        table.start().step()
        assert "last_episode" not in str(table.model.requests[-1].messages)

    def test_an_observation_that_is_no_json(self):
        table = Table(Model()).start()
        table.step(text='{"broken')
        assert table.last[-1][1]["observation"] == '{"broken'

    def test_schema_and_purpose_go_along(self):
        table = Table(Model(lambda messages: reply("left")), mask=True).start()
        table.step(mask=[True, False, True])
        [request] = table.model.requests
        assert request.schema["properties"]["action"]["enum"] == ["left", "stay", "right"], "the same in every state"
        assert (request.purpose, request.prompt) == ("player", "player/system")
        assert table.last[-1][1]["legal_actions"] == ["left", "right"]

    def test_without_reflection(self):
        table = Table(Model(lambda messages: '{"action": "left"}'), reflection=False).start()
        table.step()
        table.step()
        assert table.last[1][1] == {"action": "left"}
        assert "reflection" not in table.model.requests[0].messages[0]["content"]

    def test_how_actions_are_answered(self):
        """By what is listed: names, numbers, or several numbers by their names."""
        for options, words, listed in (
            ({}, '"action": one of the actions, by its name.', "- left: to the left"),
            ({"answer_with": "number"}, '"action": one of the actions, by its number.', "- 0: left: to the left"),
            ({"numbers": SPEED}, '"action": an object with every number by its name.', "- speed: how fast"),
        ):
            system = Table(Model(), **options).policy.system[0].text
            assert words in system and listed in system and "(the reflection first)" in system
            assert system.index('- "reflection": ') < system.index('- "action": ')

    def test_players_are_told_who_they_are(self):
        table = Table(Model(), n_agents=2).start()
        table.step()
        first, second = (r.messages[0]["content"] for r in table.model.requests)
        assert first.endswith("You are player 1.\n") and second.endswith("You are player 2.\n")
        assert first.removesuffix("1.\n") == second.removesuffix("2.\n")


class TestFrameSkip:
    def test_what_was_seen_in_between_is_one_turn(self):
        table = Table(Model(), action_every=3).start()
        acts = [table.step() for _ in range(7)]
        assert table.model.batches == [1, 1, 1]
        assert [act.notes[0][0].get("asked") for act in acts] == [True, False, False] * 2 + [True]
        told = table.last[-1][1]
        assert [frame["observation"]["x"] for frame in told["since_your_last_action"]] == [4, 5]
        assert told["observation"] == {"x": 6} and [role for role, _ in table.last][-2:] == ["assistant", "user"]

    @pytest.mark.parametrize("action_every", [1, 5])
    def test_who_has_one_legal_action_is_not_asked(self, action_every):
        answer = Model(lambda messages: reply(first_legal(messages)))
        table = Table(answer, mask=True, action_every=action_every).start()
        masks = ([False, False, True], [False, False, True], [True, True, False], [False, True, False])
        acts = [table.step(mask=mask) for mask in masks]
        assert [int(act.action[0, 0]) for act in acts] == [2, 2, 0, 1]
        assert [act.notes[0][0]["asked"] for act in acts] == [False, False, True, False]
        assert len(table.model.requests) == 1 and acts[0].notes[0][0]["action"] == "right"
        told = table.last[-1][1]
        assert len(told["since_your_last_action"]) == 2 and told["since_your_last_action"][0]["start"]

    def test_what_was_seen_without_a_choice_does_not_grow(self):
        table = Table(Model(lambda messages: reply(first_legal(messages))), mask=True).start()
        for _ in range(30):
            table.step(mask=[False, False, True])
        table.step(mask=[True, True, False])
        assert len(table.last[-1][1]["since_your_last_action"]) == 10

    def test_an_action_that_became_illegal_is_not_repeated(self):
        table = Table(Model(lambda messages: reply(first_legal(messages))), mask=True, action_every=5).start()
        acts = [table.step(mask=mask) for mask in ([False, True, True], [True, True, False], [True, False, True])]
        assert [act.action.item() for act in acts] == [1, 1, 0]
        assert [act.notes[0][0]["asked"] for act in acts] == [True, False, True]

    def test_a_new_episode_asks_anew(self):
        table = Table(Model(), action_every=5).start()
        table.step(ended=[0])
        table.start().step()
        assert table.model.batches == [1, 1]


class TestWhoIsAsked:
    def test_somebody_who_is_back_decides_at_once(self):
        table = Table(Model(), action_every=4).start()
        for text in (None, "", "", None, None, None, None, None):
            table.step(text=text)
        seen = [json.loads(r.messages[-1]["content"])["observation"]["x"] for r in table.model.requests]
        assert seen == [0, 3, 7]

    def test_all_who_play_in_one_batch(self):
        table = Table(Model(), n_envs=3, n_agents=2).start()
        table.step(ended=[1])
        table.step()
        assert table.model.batches == [6, 4]

    def test_nobody_who_waits(self):
        table = Table(Model(), n_envs=4).start(0, 2)
        act = table.step(ended=[0, 2])
        assert table.model.batches == [2] and act.notes[1][0] == {}
        table.step()
        assert table.model.batches == [2]

    def test_nobody_who_has_nothing_to_decide(self):
        table = Table(Model()).start()
        act = table.step(text="")
        assert not table.model.batches and act.action.tolist() == [[0]]
        table.step()
        assert table.model.batches == [1]


class TestRoom:
    def test_old_turns_give_way(self):
        long = Model(context_window=1500, max_tokens=100)
        table = Table(long, history=20).start()
        for _ in range(20):
            table.step(text=json.dumps({"x": "far away " * 20}))
        sizes = [len(r.messages) for r in long.requests]
        assert max(sizes) < 42 and min(sizes[-5:]) > 6
        # Cut back to the half of what fits, so that there is room to grow.
        assert any(a > b for a, b in itertools.pairwise(sizes)) and sizes[-1] != sizes[-2]
        assert table.agent.metrics()["llm/trimmed_prompts"] > 0
        assert all(long.fits(r.messages) for r in long.requests)

    def test_not_even_one_observation(self):
        with pytest.raises(LLMError, match="do not fit into the context window"):
            Table(Model(context_window=200, max_tokens=100)).start().step()


class TestRefusals:
    def test_a_game_without_words(self):
        bare = EnvSpec("road", 1, 1, {"vector": Channel((2,), "float32")}, 3, ("a", "b", "c"), 10)
        with pytest.raises(ConfigError, match=r"env=road has none: set env\.text"):
            LLMPlayer(bare, ChatClient(Model()), None)

    def test_a_broken_prompt_of_ones_own(self, tmp_path):
        (tmp_path / "player").mkdir()
        (tmp_path / "player" / "system.j2").write_text("{{ gaol }}")
        with pytest.raises(ConfigError, match="player/system"):
            Table(Model(), prompt_folder=tmp_path)

    def test_ones_own_prompt(self, tmp_path):
        (tmp_path / "player").mkdir()
        own = "{% extends 'ours/system.j2' %}"
        (tmp_path / "player" / "system.j2").write_text(own + "\n")
        (tmp_path / "player" / "_repair.j2").write_text("Nonsense: {{ fault }}")
        answers = iter(["?", reply("stay")])
        table = Table(Model(lambda messages: next(answers)), prompt_folder=tmp_path).start()
        table.step()
        assert table.model.requests[1].messages[-1]["content"].startswith("Nonsense: ")


def test_the_estimate_is_an_upper_bound():
    table = Table(Model(), n_agents=2, action_every=4, repair_turns=1)
    estimate = table.agent.estimate(10, 5)
    assert (estimate.calls, estimate.most_calls) == (3 * 5 * 2, 60)
    # An action may become illegal at any step; a lesson is drawn for each episode that follows another one.
    table = Table(Model(), n_envs=2, mask=True, action_every=4, lessons=1, repair_turns=0)
    estimate = table.agent.estimate(10, 5)
    assert estimate.calls == 10 * 5 + 3
    assert estimate.quoted == sum(range(10)) * 5 + 10 * 3
    assert table.agent.describe()["history"] == "10 to 19 turns"
