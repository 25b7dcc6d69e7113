"""Prompts of players, the selection of players that need a request, and the limits of a prompt."""

import itertools
import json
import os
import re

import pytest

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.spaces import Channel, ContinuousActions, EnvSpec
from llmrl.llms.client import ChatClient
from players import make_llm_player
from road_game import FunctionModel, GameSession, choose_first_legal, make_reply

SPEED = ContinuousActions(("a",), (-1.0,), (1.0,))


class TestConversation:
    def test_turns_alternate_as_json(self):
        table = GameSession(FunctionModel(), history=2, sliding_history=True).start()
        for _ in range(5):
            table.step()
        roles = [role for role, _ in table.last]
        assert roles == ["user", "assistant"] * 2 + ["user"]
        assert [content["observation"]["x"] for role, content in table.last if role == "user"] == [2, 3, 4]
        assert table.last[1][1] == {"reflection": "why not", "action": "stay"}
        assert [len(r.messages) for r in table.model.requests] == [2, 4, 6, 6, 6]

    def test_history_is_truncated(self):
        """Truncate to the limit only at twice its size, so that most prompts extend the last one."""
        table = GameSession(FunctionModel(), history=3).start()
        for _ in range(12):
            table.step()
        message_lists = [r.messages for r in table.model.requests]
        assert [(len(messages) - 2) // 2 for messages in message_lists] == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
        goes_on = [new[: len(old)] == old for old, new in itertools.pairwise(message_lists)]
        assert goes_on == [True] * 5 + [False, True, True] * 2

    def test_successive_prompts_share_prefix(self):
        """Check the common prefix, which providers cache."""
        shares = {}
        for sliding in (True, False):
            table = GameSession(FunctionModel(), sliding_history=sliding).start()
            for _ in range(100):
                table.step(text=json.dumps({"x": "far away " * 20}))
            texts = [json.dumps(r.messages) for r in table.model.requests]
            common_lengths = [len(os.path.commonprefix(pair)) for pair in itertools.pairwise(texts)]  # noqa: RUF071
            shares[sliding] = sum(common_lengths) / sum(map(len, texts))
        assert shares[True] < 0.45 < 0.8 < shares[False]

    def test_default_actions_are_not_assistant_turns(self):
        answers = iter([make_reply("right"), "?", "?", make_reply("left")])
        table = GameSession(FunctionModel(lambda messages: next(answers))).start()
        for _ in range(3):
            table.step()
        *_, answer, now = table.model.requests[-1].messages
        assert answer == {"role": "assistant", "content": "(no usable reply)"}
        prompt = json.loads(now["content"])
        assert prompt["no_usable_reply"] == 'your last reply could not be used; done instead: "right"'
        table.model.answer = lambda messages: make_reply("stay")
        table.step()
        assert "no_usable_reply" not in table.model.requests[-1].messages[-1]["content"]

    def test_examples_vary_actions(self):
        system = GameSession(FunctionModel()).policy.prompts.render_system(0, ()).text
        examples = re.findall(r'"action": "(\w+)"', system)
        assert len(set(examples)) == 2 and "stay" in examples

    def test_no_history(self):
        table = GameSession(FunctionModel(), history=0).start()
        for _ in range(3):
            table.step()
        assert [len(r.messages) for r in table.model.requests] == [2, 2, 2]

    def test_system_message_is_constant(self):
        """Check that a provider can cache the entire system message."""
        table = GameSession(FunctionModel(), n_envs=2, history=3).start()
        for _ in range(6):
            table.step()
        assert len({r.messages[0]["content"] for r in table.model.requests}) == 1

    def test_messages_show_observations(self):
        table = GameSession(FunctionModel(), show=["step", "reward", "return"]).start()
        for _ in range(3):
            table.step(reward=-0.5)
        first, third = table.last[0][1], table.last[-1][1]
        assert first == {"observation": {"x": 0}, "start": True, "step": 0, "return": 0}
        assert third == {"observation": {"x": 2}, "step": 2, "reward": -0.5, "return": -1}
        bare = GameSession(FunctionModel(), show=[]).start()
        bare.step()
        bare.step()
        assert bare.last[-1][1] == {"observation": {"x": 1}}
        assert '"reward"' not in bare.model.requests[0].messages[0]["content"]

    def test_last_episode_is_summarized(self):
        table = GameSession(FunctionModel(), show=["return", "last_episode"]).start()
        table.step()
        table.step(ended=[0], reward=-3, terminated=False)
        table.start().step()
        assert table.last[-1][1]["last_episode"] == {"return": -2, "steps": 2, "end": "the time was up"}
        assert len(table.last) == 1, "an episode begins with an empty history"

    def test_episode_summary_is_optional(self):
        table = GameSession(FunctionModel()).start()
        table.step(ended=[0])
        table.start().step()
        assert "last_episode" not in str(table.model.requests[-1].messages)

    def test_shows_non_json_observation(self):
        table = GameSession(FunctionModel()).start()
        table.step(text='{"broken')
        assert table.last[-1][1]["observation"] == '{"broken'

    def test_requests_carry_schema(self):
        table = GameSession(FunctionModel(lambda messages: make_reply("left")), mask=True).start()
        table.step(mask=[True, False, True])
        [request] = table.model.requests
        assert request.schema["properties"]["action"]["enum"] == ["left", "stay", "right"], "the same in every state"
        assert (request.purpose, request.prompt) == ("player", "player/system")
        assert table.last[-1][1]["legal_actions"] == ["left", "right"]

    def test_reflection_is_optional(self):
        table = GameSession(FunctionModel(lambda messages: '{"action": "left"}'), reflection=False).start()
        table.step()
        table.step()
        assert table.last[1][1] == {"action": "left"}
        assert "reflection" not in table.model.requests[0].messages[0]["content"]

    def test_actions_are_answered_in_format(self):
        """Accept names, numbers, or several numbers by name."""
        for options, words, names in (
            ({}, '"action": one of the actions, by its name.', "- left: to the left"),
            ({"action_format": "number"}, '"action": one of the actions, by its number.', "- 0: left: to the left"),
            ({"numbers": SPEED}, '"action": an object with every number by its name.', "- speed: how fast"),
        ):
            system = GameSession(FunctionModel(), **options).policy.prompts.render_system(0, ()).text
            assert words in system and names in system and "(the reflection first)" in system
            assert system.index('- "reflection": ') < system.index('- "action": ')

    def test_prompt_names_player_role(self):
        table = GameSession(FunctionModel(), n_agents=2).start()
        table.step()
        first, second = (r.messages[0]["content"] for r in table.model.requests)
        assert first.endswith("You are player 1.\n") and second.endswith("You are player 2.\n")
        assert first.removesuffix("1.\n") == second.removesuffix("2.\n")


class TestFrameSkip:
    def test_intermediate_observations_form_single_turn(self):
        table = GameSession(FunctionModel(), action_interval=3).start()
        acts = [table.step() for _ in range(7)]
        assert table.model.batches == [1, 1, 1]
        assert [act.notes[0][0].get("has_request") for act in acts] == [True, False, False] * 2 + [True]
        observed_turn = table.last[-1][1]
        assert [frame["observation"]["x"] for frame in observed_turn["since_your_last_action"]] == [4, 5]
        assert observed_turn["observation"] == {"x": 6} and [role for role, _ in table.last][-2:] == [
            "assistant",
            "user",
        ]

    @pytest.mark.parametrize("action_interval", [1, 5])
    def test_single_legal_action_needs_no_request(self, action_interval):
        answer = FunctionModel(lambda messages: make_reply(choose_first_legal(messages)))
        table = GameSession(answer, mask=True, action_interval=action_interval).start()
        masks = ([False, False, True], [False, False, True], [True, True, False], [False, True, False])
        acts = [table.step(mask=mask) for mask in masks]
        assert [int(act.action[0, 0]) for act in acts] == [2, 2, 0, 1]
        assert [act.notes[0][0]["has_request"] for act in acts] == [False, False, True, False]
        assert len(table.model.requests) == 1 and acts[0].notes[0][0]["action"] == "right"
        observed_turn = table.last[-1][1]
        assert len(observed_turn["since_your_last_action"]) == 2 and observed_turn["since_your_last_action"][0]["start"]

    def test_observations_of_forced_steps_are_bounded(self):
        table = GameSession(FunctionModel(lambda messages: make_reply(choose_first_legal(messages))), mask=True).start()
        for _ in range(30):
            table.step(mask=[False, False, True])
        table.step(mask=[True, True, False])
        assert len(table.last[-1][1]["since_your_last_action"]) == 10

    def test_illegal_action_is_not_repeated(self):
        table = GameSession(
            FunctionModel(lambda messages: make_reply(choose_first_legal(messages))), mask=True, action_interval=5
        ).start()
        acts = [table.step(mask=mask) for mask in ([False, True, True], [True, True, False], [True, False, True])]
        assert [act.action.item() for act in acts] == [1, 1, 0]
        assert [act.notes[0][0]["has_request"] for act in acts] == [True, False, True]

    def test_new_episode_triggers_request(self):
        table = GameSession(FunctionModel(), action_interval=5).start()
        table.step(ended=[0])
        table.start().step()
        assert table.model.batches == [1, 1]


class TestRequests:
    def test_returning_player_is_requested(self):
        table = GameSession(FunctionModel(), action_interval=4).start()
        for text in (None, "", "", None, None, None, None, None):
            table.step(text=text)
        positions = [json.loads(r.messages[-1]["content"])["observation"]["x"] for r in table.model.requests]
        assert positions == [0, 3, 7]

    def test_active_players_share_batch(self):
        table = GameSession(FunctionModel(), n_envs=3, n_agents=2).start()
        table.step(ended=[1])
        table.step()
        assert table.model.batches == [6, 4]

    def test_skips_waiting_players(self):
        table = GameSession(FunctionModel(), n_envs=4).start(0, 2)
        act = table.step(ended=[0, 2])
        assert table.model.batches == [2] and act.notes[1][0] == {}
        table.step()
        assert table.model.batches == [2]

    def test_skips_players_with_forced_action(self):
        table = GameSession(FunctionModel()).start()
        act = table.step(text="")
        assert not table.model.batches and act.action.tolist() == [[0]]
        table.step()
        assert table.model.batches == [1]


class TestRoom:
    def test_old_turns_give_way(self):
        long = FunctionModel(context_window=1500, max_tokens=100)
        table = GameSession(long, history=20).start()
        for _ in range(20):
            table.step(text=json.dumps({"x": "far away " * 20}))
        sizes = [len(r.messages) for r in long.requests]
        assert max(sizes) < 42 and min(sizes[-5:]) > 6
        # Cut back to the half of what fits, so that there is room to grow.
        assert any(previous_size > size for previous_size, size in itertools.pairwise(sizes)) and sizes[-1] != sizes[-2]
        assert table.agent.metrics()["llm/trimmed_prompts"] > 0
        assert all(long.fits(r.messages) for r in long.requests)

    def test_skips_observation(self):
        with pytest.raises(LLMError, match="context window"):
            GameSession(FunctionModel(context_window=200, max_tokens=100)).start().step()


class TestRefusals:
    def test_environment_text_is_required(self):
        bare = EnvSpec("road", 1, 1, {"vector": Channel((2,), "float32")}, 3, ("a", "b", "c"), 10)
        with pytest.raises(ConfigError, match=r"env=road.*env\.text"):
            make_llm_player(bare, ChatClient(FunctionModel()), None)

    def test_invalid_custom_prompt_raises(self, tmp_path):
        (tmp_path / "player").mkdir()
        (tmp_path / "player" / "system.j2").write_text("{{ gaol }}")
        with pytest.raises(ConfigError, match="player/system"):
            GameSession(FunctionModel(), prompt_folder=tmp_path)

    def test_custom_prompt_is_used(self, tmp_path):
        (tmp_path / "player").mkdir()
        custom_prompt = "{% extends 'ours/system.j2' %}"
        (tmp_path / "player" / "system.j2").write_text(custom_prompt + "\n")
        (tmp_path / "player" / "_repair.j2").write_text("Nonsense: {{ fault }}")
        answers = iter(["?", make_reply("stay")])
        table = GameSession(FunctionModel(lambda messages: next(answers)), prompt_folder=tmp_path).start()
        table.step()
        assert table.model.requests[1].messages[-1]["content"].startswith("Nonsense: ")


def test_estimate_is_upper_bound():
    table = GameSession(FunctionModel(), n_agents=2, action_interval=4, repair_turns=1)
    estimate = table.agent.estimate(10, 5)
    assert (estimate.calls, estimate.max_calls) == (3 * 5 * 2, 60)
    # An action may become illegal at any step; a lesson is drawn for each episode that follows another one.
    table = GameSession(FunctionModel(), n_envs=2, mask=True, action_interval=4, lessons=1, repair_turns=0)
    estimate = table.agent.estimate(10, 5)
    assert estimate.calls == 10 * 5 + 3
    assert estimate.n_quoted_replies == sum(range(10)) * 5 + 10 * 3
    assert table.agent.describe()["history"] == "10 to 19 turns"
