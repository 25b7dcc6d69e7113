import pytest

from llmrl.core.errors import LLMError
from llmrl.core.records import ChatReply
from llmrl.llms.client import ChatClient
from llmrl.llms.prompts import Prompt
from llmrl.llms.structured import InvalidReply
from llmrl.llms.structured_query import QUOTED_REPLY, Query, StructuredQuery
from models import Echo, ask


def number(reply):
    text = reply.text
    if not text.strip().isdigit():
        raise InvalidReply(f"{text[:20]!r} is no number")
    return int(text)


class Answers(Echo):
    """Replies from a list, in turn."""

    def __init__(self, *texts, finish="", **facts):
        super().__init__(parallel=False, **facts)
        self.texts, self.requests, self.finish = list(texts), [], finish

    def complete(self, requests):
        self.requests += requests
        return [ChatReply(self.texts.pop(0), finish=self.finish) for _ in requests]


def asker(model, repair_turns=1, **policies):
    client = ChatClient(model, **policies)
    return StructuredQuery(
        client, "test", number, lambda fault: Prompt(f"Wrong: {fault}"), {"type": "integer"}, repair_turns
    )


def questions(*texts):
    return [Prompt(text, "p/x", "abc") for text in texts]


def test_many_at_once_and_repairs_together():
    model = Answers("1", "two", "x", "4", "2", "y")
    asked = asker(model)
    assert asked.ask(questions("a", "b", "c", "d")) == [1, 2, None, 4]
    assert asked.metrics() == {
        "llm/invalid_replies": 3.0,
        "llm/repairs": 1.0,
        "llm/fallbacks": 1.0,
        "llm/trimmed_prompts": 0.0,
    }
    assert [len(request.messages) for request in model.requests] == [1, 1, 1, 1, 3, 3]
    assert model.requests[4].messages[1:] == (
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "Wrong: 'two' is no number"},
    )


def test_what_the_call_log_needs_goes_along():
    model = Answers("1")
    asker(model).ask(questions("a"))
    [request] = model.requests
    assert (request.purpose, request.prompt, request.prompt_hash) == ("test", "p/x", "abc")
    assert request.schema == {"type": "integer"}
    assert request.read(ChatReply("7")) == 7
    with pytest.raises(InvalidReply, match="'seven' is no number"):
        request.read(ChatReply("seven"))


def test_a_long_or_empty_reply_is_quoted_as_providers_take_it():
    model = Answers("", "y" * 10_000, "z")
    asker(model, repair_turns=2).ask(questions("a"))
    assert model.requests[1].messages[1]["content"] == "(empty reply)"
    assert len(model.requests[2].messages[3]["content"]) == QUOTED_REPLY


def test_a_cut_reply_is_told_why():
    model = Answers("12 an", "12", finish="length")
    assert asker(model).ask(questions("a")) == [12]
    assert "cut off because it grew too long" in model.requests[1].messages[2]["content"]


def test_a_failed_call_falls_back_without_a_repair():
    model = Echo(fail={"a": LLMError("down")})
    asked = asker(model, failures="fall_back")
    assert asked.ask(questions("a", "7")) == [None, 7]
    assert sorted(model.asked) == ["7", "a"] and asked.counters["fallbacks"] == 1


def test_no_room_for_a_repair_is_a_fallback():
    model = Answers("word " * 30, context_window=40)
    assert asker(model).ask(questions("a")) == [None]
    assert len(model.requests) == 1


def test_state():
    asked = asker(Answers("x", "y"))
    asked.ask(questions("a"))
    other = asker(Answers())
    other.load_state_dict(asked.state_dict())
    assert other.metrics() == asked.metrics() and other.counters is not asked.counters


class TestFit:
    def render(self, k):
        return Prompt("question " + "record " * k, "p/x")

    def fit(self, window, n=100):
        asked = asker(Echo(context_window=window, max_tokens=10))
        prompt = asked.fit(self.render, n)
        return prompt.text.count("record"), asked.counters["trimmed_prompts"]

    def test_everything_where_the_window_is_unknown_or_long(self):
        assert self.fit(None) == (100, 0) and self.fit(10**6) == (100, 0)

    def test_as_much_as_fits(self, caplog):
        # 4 tokens around a message, 2 of "question", 1 for each record, 10 of reply.
        assert self.fit(76) == (60, 1) and self.fit(16) == (0, 1)
        assert "shows 60 of 100 records" in caplog.text

    def test_not_even_nothing(self):
        with pytest.raises(LLMError, match="prompt p/x does not fit into the context window of echo"):
            self.fit(15)


def test_questions_do_not_mix():
    """Fallbacks of one question leave the others' repeats alone."""
    model = Answers("1", "2")
    client = ChatClient(model)
    client.chat([ask("a")])
    assert StructuredQuery(client, "t", number, lambda fault: Prompt(fault), None, 0).ask(questions("a")) == [2]
    assert [request.repeat for request in model.requests] == [0, 1]


class TestConversations:
    """A question may be a whole conversation, with a form of its own."""

    def question(self, schema=None):
        turns = [("system", "rules"), ("user", "a"), ("assistant", "1"), ("user", "b")]
        return Query(tuple({"role": role, "content": text} for role, text in turns), "p/y", "def", schema)

    def test_they_are_asked_as_they_are(self):
        model = Answers("two", "2")
        asked = asker(model)
        assert asked.ask([self.question({"type": "string"})]) == [2]
        first, second = model.requests
        assert [m["role"] for m in first.messages] == ["system", "user", "assistant", "user"]
        assert [m["role"] for m in second.messages][4:] == ["assistant", "user"]
        assert (first.schema, first.prompt, first.prompt_hash) == ({"type": "string"}, "p/y", "def")
        assert asker(model).schema == {"type": "integer"}

    def test_what_each_took(self):
        model = Echo(parallel=False, reply={"cost": 0.5}, fail={})
        asked = asker(model, repair_turns=1)
        asked.ask(questions("7", "x"))
        good, bad = asked.asked
        assert (good.replies, good.invalid, good.text) == (1, 0, "7")
        assert (bad.replies, bad.invalid, bad.text) == (2, 2, "Wrong: 'x' is no number")
        assert (bad.prompt_tokens, bad.completion_tokens, bad.cost) == (6, 4, 1.0)

    def test_what_is_unknown_is_not_zero(self):
        model = Echo(parallel=False, reply={"prompt_tokens": None})
        asked = asker(model)
        asked.ask(questions("7"))
        assert (asked.asked[0].prompt_tokens, asked.asked[0].cost) == (None, None)

    def test_a_failed_call_is_no_reply_and_costs_nothing(self):
        asked = asker(Echo(fail={"a": LLMError("down")}), failures="fall_back")
        asked.ask(questions("a"))
        took = asked.asked[0]
        assert (took.replies, took.invalid, took.failed, took.prompt_tokens, took.cost) == (0, 0, 1, 0, 0.0)


def test_a_thought_is_not_shown_back():
    model = Answers("<think>" + "hm " * 3000 + "</think>two", "2")
    assert asker(model).ask(questions("a")) == [2]
    assert model.requests[1].messages[1] == {"role": "assistant", "content": "two"}


@pytest.mark.parametrize("finish", ["length", "MAX_TOKENS", "model_length"])
def test_a_reply_that_was_cut(finish):
    model = Answers("two", "2", finish=finish)
    asked = asker(model)
    assert (
        asked.ask(questions("a")) == [2] and ChatReply("", finish=finish).cut and not ChatReply("", finish="stop").cut
    )
    assert "cut off because it grew too long; 'two' is no number" in model.requests[1].messages[2]["content"]
