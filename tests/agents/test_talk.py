"""Players with messages: recipients, prompts, and resumed runs."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from environments import make_env
from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.agents.llm_player.agent import read_personas
from llmrl.agents.llm_player.talk import Talk, TalkMessage, has_only_empty_messages
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.records import ChatReply
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.rollout.collector import Collector
from models import EchoProvider
from players import make_llm_player

SPEC = make_env("fishery", n_envs=2, n_agents=4, observe=["text"], mechanism=False).spec


class Fishers(EchoProvider):
    """A model that speaks and acts by a function of the player's name and the newest message."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def complete(self, requests):
        replies = []
        for request in requests:
            player = request.messages[0]["content"].rpartition("You are ")[2].split(".")[0]
            observations = [
                m["content"] for m in request.messages if m["role"] == "user" and m["content"].startswith("{")
            ]
            now = json.loads(observations[-1])
            self.asked.append((player, now, request))
            replies.append(ChatReply(json.dumps(self.answer(player, now)), 10, 5))
        return replies


def speak_and_act(player, now):
    if now.get("talk"):
        return {"message": f"I am {player}."}
    return {"reflection": "x", "action": "take_5"}


def play(answer, steps=3, env=None, **options):
    env = env or make_env("fishery", n_envs=1, n_agents=4, observe=["text"], mechanism=False)
    fishers = Fishers(answer)
    agent = make_llm_player(
        env.spec, ChatClient(fishers), None, message_interval=options.pop("message_interval", 1), **options
    )
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    collector.collect(steps, torch.Generator(), learn=False)
    return fishers.asked, agent


class TestRecipients:
    @given(st.lists(st.sampled_from(["", "a", None]), min_size=4, max_size=4))
    def test_all_players_hear_messages(self, messages):
        round_ = [None if text is None else TalkMessage(text and f"{text}{i}") for i, text in enumerate(messages)]
        inbox = Talk(SPEC, 1, "all", 100).deliver(round_)
        for i, entries in enumerate(inbox):
            speakers = [j for j in range(4) if j != i and round_[j] is not None and round_[j].text]
            expected = [{"from": f"player {j + 1}", "message": round_[j].text} for j in speakers]
            assert entries == ([] if round_[i] is None else expected)

    def test_addressee_hears_message(self):
        talk = Talk(SPEC, 1, "one", 100)
        assert talk.parse_reply('{"to": "Player 2", "message": "hello"}', 0, False) == TalkMessage("hello", "player 2")
        round_ = [TalkMessage("hello", "player 2"), TalkMessage(""), TalkMessage("x", "player 1"), None]
        inbox = talk.deliver(round_)
        assert [len(entries) for entries in inbox] == [1, 1, 0, 0]
        for wrong in ("player 1", "player 7", ""):
            with pytest.raises(InvalidReply, match="player 2, player 3"):
                talk.parse_reply(json.dumps({"to": wrong, "message": "hello"}), 0, False)
        assert talk.build_schema()["properties"]["to"]["enum"] == ["player 1", "player 2", "player 3", "player 4"]

    @pytest.mark.parametrize("text", ['{"message": ""}', '```json\n{"message": ""}\n```', '{"to": "x", "message":""}'])
    def test_silence(self, text):
        assert has_only_empty_messages(text) and Talk(SPEC, 1, "all", 100).parse_reply(text, 0, False) == TalkMessage(
            ""
        )

    @pytest.mark.parametrize(
        "text",
        [
            '{"message": "we should each take 5"}',
            "<think>hm</think>we should each take 5",
            "message: we should each take 5",
        ],
    )
    def test_model_reply_styles_are_parsed(self, text):
        assert Talk(SPEC, 1, "all", 100).parse_reply(text, 0, False).text == "we should each take 5"
        assert len(Talk(SPEC, 1, "all", 4).parse_reply('{"message": "a long story"}', 0, False).text) == 4

    @pytest.mark.parametrize("to", ['"player 2"', '"Player_2"', "2", '["player 2"]'])
    def test_addressee_spellings(self, to):
        assert Talk(SPEC, 1, "one", 200).parse_reply(f'{{"to": {to}, "message": "hello"}}', 0, False) == TalkMessage(
            "hello", "player 2"
        )

    @pytest.mark.parametrize("to", ["true", '"player"', "9", '["player 2", "player 3"]'])
    def test_ambiguous_addressees_are_invalid(self, to):
        with pytest.raises(InvalidReply):
            Talk(SPEC, 1, "one", 200).parse_reply(f'{{"to": {to}, "message": "hello"}}', 0, False)

    def test_single_player_has_no_recipients(self):
        with pytest.raises(ConfigError, match=r"agent\.message_interval=1"):
            Talk(make_env("fishery", n_envs=1, n_agents=1, observe=["text"], mechanism=False).spec, 1, "all", 100)


class TestRounds:
    def test_messages_appear_in_next_prompt(self):
        requests, agent = play(speak_and_act)
        talks = [(player, now) for player, now, _ in requests if now.get("talk")]
        acts = [(player, now) for player, now, _ in requests if not now.get("talk")]
        assert len(talks) == len(acts) == 12
        for player, now in acts:
            assert now["you_said"] == f"I am {player}."
            names = [entry["from"] for entry in now["heard"]]
            assert names == [f"player {i}" for i in range(1, 5) if f"player {i}" != player]
            assert all(entry["message"] == f"I am {entry['from']}." for entry in now["heard"])
        assert all("heard" not in now for _, now in talks)
        assert agent.metrics()["player/messages"] == 12 and agent.metrics()["player/decisions"] == 12

    def test_messages_are_remembered(self):
        requests, _ = play(speak_and_act, steps=2)
        request = requests[-1][2]
        earlier = json.loads(request.messages[1]["content"])
        assert earlier["heard"] and "talk" not in earlier

    def test_rounds_follow_interval(self):
        requests, _ = play(speak_and_act, steps=5, message_interval=2)
        steps = sorted({now["step"] for _, now, _ in requests if now.get("talk")})
        assert steps == [0, 2, 4]
        [schema] = {json.dumps(r.schema) for _, now, r in requests if now.get("talk")}
        assert list(json.loads(schema)["properties"]) == ["message"]

    def test_invalid_message_is_silence(self):
        requests, agent = play(
            lambda player, now: {"x": 1} if now.get("talk") else {"reflection": "x", "action": "take_5"}
        )
        assert agent.metrics()["player/messages"] == 0
        assert all("you_said" not in now and "heard" not in now for _, now, _ in requests if not now.get("talk"))
        assert agent.metrics()["player/invalid_rate"] > 0.5 and agent.metrics()["player/fallback_rate"] == 0

    def test_silent_players_receive_no_instructions(self):
        env = make_env("fishery", n_envs=1, observe=["text"], mechanism=False)
        system = make_llm_player(env.spec, ChatClient(EchoProvider()), None).policy.prompts.render_system(0, ()).text
        assert "Talking" not in system and "heard" not in system


class TestPersonas:
    def test_players_have_personas(self, tmp_path):
        file = tmp_path / "people.yaml"
        file.write_text("- You think of\n  your children.\n- You want it all.\n")
        env = make_env("fishery", n_envs=1, n_agents=3, observe=["text"], mechanism=False)
        policy = make_llm_player(env.spec, ChatClient(EchoProvider()), None, personas=str(file)).policy
        ends = [
            prompt.text.rstrip().splitlines()[-1]
            for prompt in (policy.prompts.render_system(agent, ()) for agent in range(policy.spec.n_agents))
        ]
        assert ends == [
            "You are player 1. You think of your children.",
            "You are player 2. You want it all.",
            "You are player 3. You think of your children.",
        ]

    @pytest.mark.parametrize("content", ["", "a: 1", "- 1", "- ' '", "- [", "[]"])
    def test_rejects_invalid_personas(self, tmp_path, content):
        file = tmp_path / "people.yaml"
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"agent\.personas"):
            read_personas(file)

    def test_changed_file_changes_hash(self, tmp_path):
        from llmrl.config.input_digests import with_digests

        file = tmp_path / "people.yaml"
        config = compose("experiment=zero_shot/fishery", f"agent.personas={file}")
        errors = []
        for persona_text in ("- You fish.", "- You do not fish."):
            file.write_text(persona_text)
            errors.append(with_digests(config)["personas_digest"])
        assert errors[0] != errors[1]


def test_run_with_messages_resumes_after_budget(tmp_path):
    """Compare with an uninterrupted run, for each kind of last request."""
    options = ("experiment=zero_shot/fishery", "treatment=universalization", "agent.message_interval=1", "llm=scripted")
    options = (*options, "env.n_envs=2", "env.horizon=3", "play.episodes=2", "llm.cache=off")
    run(*options, f"output_root={tmp_path / 'whole'}")
    reference = find_run_folder(tmp_path / "whole")
    with pytest.raises(BudgetExhausted):
        run(*options, "llm.budget.calls=17", f"output_root={tmp_path / 'parts'}")
    run(*options, "llm.budget.calls=1000", f"output_root={tmp_path / 'parts'}")

    def unpaid(folder):
        return [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]

    parts = find_run_folder(tmp_path / "parts")
    assert unpaid(parts) == unpaid(reference)
    lines = [
        json.loads(line) for path in reference.glob("episodes/*/*.jsonl") for line in path.read_text().splitlines()
    ]
    assert any(line.get("message") for line in lines) and not any("message_cost" in line for line in lines)
    assert np.isfinite(unpaid(reference)[-1]["player/messages"])
