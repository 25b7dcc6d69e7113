"""What a model is asked, and what becomes of its replies, whatever they are."""

import json

import numpy as np
import pytest
import torch

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatReply, Step
from llmrl.core.spaces import ActionNumbers, Channel, EnvSpec, GameText
from llmrl.llms.client import ChatClient
from llmrl.players.llm_player import LLMPlayer
from models import Echo

ACTIONS = (("left", "to the left"), ("stay", "nothing"), ("right", "to the right"))


class Model(Echo):
    """Answers by a function of the messages; keeps the requests."""

    def __init__(self, answer=lambda messages: reply("stay"), **facts):
        super().__init__(parallel=False, **facts)
        self.answer, self.requests, self.batches = answer, [], []

    def complete(self, requests):
        self.requests += requests
        self.batches.append(len(requests))
        return [ChatReply(self.answer(r.messages), prompt_tokens=10, completion_tokens=5) for r in requests]


def reply(action, reflection="why not"):
    return json.dumps({"reflection": reflection, "action": action})


def first_legal(messages):
    return json.loads(messages[-1]["content"])["legal_actions"][0]


def spec(n_envs=1, n_agents=1, mask=False, numbers=None):
    channels = {"text": Channel((), "object")}
    if mask:
        channels["action_mask"] = Channel((3,), "bool", 0, 1)
    actions = ACTIONS if numbers is None else (("speed", "how fast"),)
    text = GameText("Get to the right.", (("x", "your place"),), actions)
    n = 3 if numbers is None else 0
    return EnvSpec("road", n_envs, n_agents, channels, n, ("left", "stay", "right")[:n], 10, numbers=numbers, text=text)


class Table:
    """Plays a policy as a collector would; observations are the step's number, told as JSON."""

    def __init__(self, model, n_envs=1, n_agents=1, mask=False, numbers=None, **options):
        self.spec, self.model = spec(n_envs, n_agents, mask, numbers), model
        client = ChatClient(model, failures=options.pop("failures", "stop"))
        self.agent = LLMPlayer(self.spec, client, options.pop("prompt_folder", None), **options)
        self.policy, self.t = self.agent.policy, 0

    def start(self, *games):
        wanted = np.isin(np.arange(self.spec.n_envs), games or np.arange(self.spec.n_envs))
        self.policy.started(wanted)
        return self

    def step(self, ended=(), reward=1.0, text=None, mask=None, terminated=True):
        shape = (self.spec.n_envs, self.spec.n_agents)
        texts = np.empty(shape, dtype=object)
        for game in range(shape[0]):
            for agent in range(shape[1]):
                texts[game, agent] = json.dumps({"x": self.t}) if text is None else text
        observation = {"text": texts}
        if mask is not None:
            observation["action_mask"] = torch.tensor(mask).expand(*shape, 3)
        act = self.policy.act(observation)
        over = np.isin(np.arange(shape[0]), ended)
        rewards = np.full(shape, reward, dtype=np.float32)
        self.policy.happened(Step({}, rewards, rewards, over & terminated, over & (not terminated)), over)
        self.t += 1
        return act

    @property
    def last(self):
        """The last question, its system message aside, as (role, content) with JSON unfolded."""
        return [(m["role"], json.loads(m["content"])) for m in self.model.requests[-1].messages[1:]]


class TestTheConversation:
    def test_turns_alternate_and_are_json(self):
        table = Table(Model(), history=2).start()
        for _ in range(5):
            table.step()
        roles = [role for role, _ in table.last]
        assert roles == ["user", "assistant"] * 2 + ["user"]
        assert [content["observation"]["x"] for role, content in table.last if role == "user"] == [2, 3, 4]
        assert table.last[1][1] == {"reflection": "why not", "action": "stay"}
        assert [len(r.messages) for r in table.model.requests] == [2, 4, 6, 6, 6]

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
        table = Table(Model()).start()
        table.step()
        table.step(ended=[0], reward=-3, terminated=False)
        table.start().step()
        assert table.last[-1][1]["last_episode"] == {"return": -2, "steps": 2, "end": "the time was up"}
        assert len(table.last) == 1, "an episode begins with an empty history"

    def test_an_observation_that_is_no_json(self):
        table = Table(Model()).start()
        table.step(text='{"broken')
        assert table.last[-1][1]["observation"] == '{"broken'

    def test_schema_and_purpose_go_along(self):
        table = Table(Model(lambda messages: reply("left")), mask=True).start()
        table.step(mask=[True, False, True])
        [request] = table.model.requests
        assert request.schema["properties"]["action"]["enum"] == ["left", "right"]
        assert (request.purpose, request.prompt) == ("player", "player/system")
        assert table.last[-1][1]["legal_actions"] == ["left", "right"]

    def test_without_reflection(self):
        table = Table(Model(lambda messages: '{"action": "left"}'), reflection=False).start()
        table.step()
        table.step()
        assert table.last[1][1] == {"action": "left"}
        assert "reflection" not in table.model.requests[0].messages[0]["content"]

    def test_players_are_told_who_they_are(self):
        table = Table(Model(), n_agents=2).start()
        table.step()
        first, second = (r.messages[0]["content"] for r in table.model.requests)
        assert "you are player 1" in first and "you are player 2" in second and first != second


class TestFrameSkip:
    def test_what_was_seen_in_between_is_one_turn(self):
        table = Table(Model(), action_every=3).start()
        acts = [table.step() for _ in range(7)]
        assert table.model.batches == [1, 1, 1]
        assert [act.notes[0][0].get("asked") for act in acts] == [True, False, False] * 2 + [True]
        told = table.last[-1][1]
        assert [frame["observation"]["x"] for frame in told["since_your_last_action"]] == [4, 5]
        assert told["observation"] == {"x": 6} and [role for role, _ in table.last][-2:] == ["assistant", "user"]

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


class TestBadReplies:
    def test_a_repair(self):
        answers = iter(["jump", reply("jump"), reply("right")])
        table = Table(Model(lambda messages: next(answers)), repair_turns=2).start()
        act = table.step()
        assert act.action.tolist() == [[2]] and act.notes[0][0]["valid"]
        assert (act.notes[0][0]["replies"], act.notes[0][0]["invalid"]) == (3, 2)
        asked = table.model.requests[2].messages
        assert [m["role"] for m in asked] == ["system", "user", "assistant", "user", "assistant", "user"]
        assert '"left", "stay", "right"' in asked[-1]["content"]
        assert table.agent.metrics()["player/invalid_rate"] == pytest.approx(2 / 3)
        assert act.notes[0][0]["prompt_tokens"] == 30

    def test_the_last_action_is_repeated(self):
        answers = iter([reply("right"), "?", "?"])
        table = Table(Model(lambda messages: next(answers))).start()
        table.step()
        act = table.step()
        assert act.action.tolist() == [[2]] and not act.notes[0][0]["valid"]
        assert table.agent.metrics()["player/fallback_rate"] == 0.5

    def test_unless_it_is_illegal(self):
        answers = iter([reply("right"), reply("right"), "?"])
        table = Table(Model(lambda messages: next(answers)), mask=True).start()
        table.step(mask=[False, True, True])
        act = table.step(mask=[False, True, False])
        assert act.action.tolist() == [[1]]

    def test_illegal_ones_pass_where_nobody_asks_for_legal_ones(self):
        table = Table(Model(lambda messages: reply("right")), mask=True, legal_only=False).start()
        assert table.step(mask=[True, True, False]).action.tolist() == [[2]]
        assert "legal" not in table.model.requests[0].messages[0]["content"]

    def test_nothing_but_rubbish(self):
        """From the first reply on; the history stays a conversation."""
        table = Table(Model(lambda messages: "\x00{"), n_envs=2, history=3).start()
        for _ in range(5):
            act = table.step()
        assert act.action.tolist() == [[0], [0]]
        metrics = table.agent.metrics()
        assert (metrics["player/fallback_rate"], metrics["player/invalid_rate"]) == (1.0, 1.0)
        assert metrics["llm/invalid_replies"] == len(table.model.requests) == 20

    def test_numbers(self):
        numbers = ActionNumbers(("a",), (-1.0,), (1.0,))
        answers = iter([reply({"speed": 0.456}), reply(7), reply(0.25), reply(9), reply(9)])
        table = Table(Model(lambda messages: next(answers)), numbers=numbers, decimals=1).start()
        assert table.step().action.tolist() == [[[pytest.approx(0.5)]]]
        assert table.step().action.tolist() == [[[pytest.approx(0.2)]]]  # rounded to even
        act = table.step()
        assert act.action.tolist() == [[[pytest.approx(0.2)]]] and not act.notes[0][0]["valid"]
        assert "speed must be from -1 to 1" in table.model.requests[-1].messages[-1]["content"]

    def test_failed_calls_are_no_replies(self):
        """The second of three calls fails for good, and what is done in its place is counted."""
        model = Model()
        said, model.calls = model.complete, 0

        def complete(requests):
            model.calls += 1
            return [ChatReply("", error="down")] if model.calls == 2 else said(requests)

        model.complete = complete
        table = Table(model, failures="fall_back").start()
        for _ in range(3):
            act = table.step()
            if model.calls == 2:
                assert (act.notes[0][0]["replies"], act.notes[0][0]["invalid"], act.notes[0][0]["failed"]) == (0, 0, 1)
        found = table.policy.metrics()
        assert (found["player/failed_calls"], found["player/invalid_rate"]) == (1, 0)
        assert found["player/fallback_rate"] == pytest.approx(1 / 3)

    def test_a_model_that_cannot_be_reached_ends_it(self):
        class Down(Model):
            def complete(self, requests):
                raise LLMError("down")

        with pytest.raises(LLMError, match="down"):
            Table(Down()).start().step()


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


class TestRoom:
    def test_old_turns_give_way(self):
        long = Model(context_window=1500, max_tokens=100)
        table = Table(long, history=20).start()
        for _ in range(20):
            table.step(text=json.dumps({"x": "far away " * 20}))
        sizes = [len(r.messages) for r in long.requests]
        assert max(sizes) < 42 and sizes[-1] == sizes[-2] > 2
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
    assert table.agent.describe()["history"] == "10 turns"
