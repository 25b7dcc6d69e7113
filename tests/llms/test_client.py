"""Chat client: usage totals, repeats, cache and failures."""

import json
import os
import stat
import threading

import pytest

from llmrl.core.errors import BudgetExhausted, CallInterrupted, LLMError, RunFolderError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.records import ChatRequest
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache, compute_request_key
from llmrl.llms.client import ChatClient
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.retry import Retry, TransientError
from models import EchoProvider, make_client, make_request


def cached(folder, model=None, mode="readwrite", **policies):
    return make_client(model or EchoProvider(), Cache(folder, mode), **policies)


def test_is_chat_model_and_meter():
    assert isinstance(ChatClient(EchoProvider()), ChatModel)


class TestTotals:
    def test_usage_totals(self, tmp_path):
        client = cached(tmp_path)
        client.chat([make_request("a"), make_request("b")])
        second_client = cached(tmp_path)
        second_client.chat([make_request("a"), make_request("c")])
        used = {"llm/calls": 2.0, "llm/prompt_tokens": 6.0, "llm/completion_tokens": 4.0, "llm/cost": 14e-6}
        for metrics in (client.metrics(), second_client.metrics()):
            assert {name: metrics[name] for name in used} == pytest.approx(used)
        assert client.metrics()["usage/llm_calls"] == 2 and second_client.metrics()["usage/llm_calls"] == 1
        assert second_client.metrics()["usage/llm_tokens"] == 5

    def test_state(self):
        client = ChatClient(EchoProvider())
        client.chat([make_request()] * 3)
        restored_client = ChatClient(EchoProvider())
        restored_client.load_state_dict(client.state_dict())
        metrics = client.metrics()
        used = [name for name in metrics if name.startswith("llm/")]
        assert len(used) == 4 and [restored_client.metrics()[name] for name in used] == [metrics[name] for name in used]
        restored_client.chat([make_request()])
        assert client.metrics() == metrics, "the state must not be shared"

    def test_unknown_is_not_zero(self):
        model = EchoProvider(reply={"prompt_tokens": None})
        client = ChatClient(model)
        client.chat([make_request()])
        assert not {"llm/cost", "llm/prompt_tokens", "usage/llm_cost", "usage/llm_tokens"} & set(client.metrics())
        assert client.metrics()["llm/completion_tokens"] == 2
        model.reply["prompt_tokens"] = 3
        client.chat([make_request()])
        assert "llm/cost" not in client.metrics(), "a sum with an unknown term stays unknown"

    def test_cost_with_provider_cache(self):
        model = EchoProvider(
            reply={"prompt_tokens": 100, "completion_tokens": 0, "cached_tokens": 80}, cached_input_price=0.1
        )
        [reply] = ChatClient(model).chat([make_request()])
        assert reply.cost == pytest.approx((20 * 1.0 + 80 * 0.1) / 1e6)
        model.cached_input_price = None
        [reply] = ChatClient(model).chat([make_request()])
        assert reply.cost == pytest.approx(100e-6)


class TestRepeats:
    def test_repeated_question_is_separate_request(self, tmp_path):
        model = EchoProvider()
        client = cached(tmp_path, model)
        client.chat([make_request("a"), make_request("a"), make_request("b")])
        client.chat([make_request("a")])
        assert sorted(model.asked) == ["a", "a", "a", "b"]
        second_client = cached(tmp_path, model)
        second_client.chat([make_request("b"), make_request("a")])
        second_client.chat([make_request("a"), make_request("a")])
        assert len(model.asked) == 4, "in whatever batches they come, these four were asked before"
        second_client.chat([make_request("a")])
        assert len(model.asked) == 5

    def test_resume_requests_previous_replies(self, tmp_path):
        model = EchoProvider()
        client = cached(tmp_path, model)
        client.chat([make_request("a")])
        state = client.state_dict()
        client.chat([make_request("a")])
        second_client = cached(tmp_path, model)
        second_client.load_state_dict(state)
        second_client.chat([make_request("a")])
        assert len(model.asked) == 2
        second_client.chat([make_request("a")])
        assert len(model.asked) == 3

    def test_seeds_have_separate_samples(self, tmp_path):
        model = EchoProvider()
        for sample_seed in (0, 1, None, 0, 1, None):
            cached(tmp_path, model, sample_seed=sample_seed).chat([make_request("a")])
        assert len(model.asked) == 3

    def test_state_is_checkpointable(self):
        client = ChatClient(EchoProvider())
        client.chat([make_request(f"{i}") for i in range(5)])
        repeats = client.state_dict()["repeats"]
        assert repeats["questions"].dtype == repeats["counts"].dtype == "int64" and len(repeats["counts"]) == 5


def test_request_key_covers_reply_settings():
    identity = {"model": "m", "temperature": 1.0}
    base = compute_request_key(identity, make_request("a"))
    assert base == compute_request_key(
        {"temperature": 1.0, "model": "m"},
        make_request("a", purpose="another", prompt="p", prompt_hash="h", parse=len),
    )
    variants = [
        compute_request_key({**identity, "temperature": 0.5}, make_request("a")),
        compute_request_key(identity, make_request("b")),
        compute_request_key(identity, ChatRequest(({"role": "system", "content": "a"},))),
        compute_request_key(identity, make_request("a", schema={"type": "object"})),
        compute_request_key(identity, make_request("a", repeat=1)),
        compute_request_key(identity, make_request("a"), sample_seed=0),
        compute_request_key(identity, make_request("a"), sample_seed=1),
    ]
    assert len({base, *variants}) == 8


class TestCacheModes:
    def test_modes_read_or_write(self, tmp_path):
        model = EchoProvider()
        cached(tmp_path / "x", model, "read").chat([make_request("a")])
        assert not (tmp_path / "x").exists()
        cached(tmp_path, model).chat([make_request("a")])
        cached(tmp_path, model, "read").chat([make_request("a")])
        assert len(model.asked) == 2
        cached(tmp_path, model, "off").chat([make_request("a")])
        assert len(model.asked) == 3

    def test_only_mode_sends_no_request(self, tmp_path):
        model = EchoProvider()
        cached(tmp_path, model).chat([make_request("a")])
        client = cached(tmp_path, model, "only")
        assert client.chat([make_request("a")])[0].text == "a"
        with pytest.raises(LLMError, match=r"llm.cache=only.*'test'.*llm.cache=readwrite"):
            client.chat([make_request("b", purpose="test")])
        assert len(model.asked) == 1

    def test_records_are_readable(self, tmp_path):
        text = 'one\n\n two\t"three" \u00fc \u2028 {x}\r\n'
        request = make_request(text, purpose="test", prompt="p/x", schema={"type": "object"})
        [reply] = cached(tmp_path).chat([request])
        [path] = tmp_path.rglob("*.json")
        entry = json.loads(path.read_text(encoding="utf-8"))
        assert entry["messages"] == [{"role": "user", "content": text.split("\n")}]
        assert entry["model"] == {"model": "echo"} and entry["prompt"] == "p/x" and entry["schema"]
        assert path.stem == entry["hash"] == compute_request_key({"model": "echo"}, request)
        [cached_reply] = cached(tmp_path).chat([request])
        assert (
            cached_reply.text == reply.text == text and cached_reply.attempts == 0 and cached_reply.cost == reply.cost
        )

    def test_lone_surrogate_is_storable(self, tmp_path):
        client = cached(tmp_path, EchoProvider())
        client.provider.complete = lambda requests: [
            type(r)(text="x\ud800y") for r in EchoProvider().complete(requests)
        ]
        assert (
            client.chat([make_request("a")])[0].text == cached(tmp_path).chat([make_request("a")])[0].text == "x\ufffdy"
        )

    @pytest.mark.parametrize("damage", ["", "{", "[]", '{"reply": {"text": "flat"}}', "\x00\xff"])
    def test_corrupt_record_is_replaced(self, tmp_path, caplog, damage):
        model = EchoProvider()
        cached(tmp_path, model).chat([make_request("a")])
        [path] = tmp_path.rglob("*.json")
        path.write_bytes(damage.encode("latin-1"))
        assert cached(tmp_path, model).chat([make_request("a")])[0].text == "a"
        assert "is damaged" in caplog.text and len(model.asked) == 2
        assert cached(tmp_path, model).chat([make_request("a")])[0].text == "a" and len(model.asked) == 2

    def test_conflicting_reply_is_ignored(self, tmp_path):
        cache, request = Cache(tmp_path), make_request("a")
        [reply] = ChatClient(EchoProvider()).chat([request])
        key = compute_request_key({"model": "echo"}, request)
        from dataclasses import replace

        first = cache.put(key, {}, request, replace(reply, text="first"))
        second = cache.put(key, {}, request, replace(reply, text="second"))
        assert first.text == second.text == cache.get(key).text == "first"
        assert not list(tmp_path.rglob("*.tmp"))

    def test_unwritable_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RunFolderError, match=r"llm.cache_dir=.*llm.cache=off"):
            cached(tmp_path / "file").chat([make_request("a")])

    def test_records_are_group_readable(self, tmp_path):
        cached(tmp_path).chat([make_request("a")])
        [path] = tmp_path.rglob("*.json")
        umask = os.umask(0)
        os.umask(umask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


class TestFailures:
    def test_error_follows_storing_remaining_replies(self, tmp_path):
        model = EchoProvider(fail={"1": LLMError("no")})
        with pytest.raises(LLMError, match=r"no \(1 of 4 "):
            cached(tmp_path, model, limits=RateLimit(1)).chat([make_request(f"{i}") for i in range(4)])
        assert model.asked == ["0", "1", "2", "3"] and len(list(tmp_path.rglob("*.json"))) == 3

    @pytest.mark.parametrize("remote", [True, False])
    def test_fallback_continues(self, remote):
        model = EchoProvider(remote=remote, fail={"1": LLMError("no")})
        client = make_client(model, failures="fall_back")
        replies = client.chat([make_request("0"), make_request("1")])
        assert [reply.error for reply in replies] == (["", "no"] if remote else ["no", "no"])
        assert replies[1].text == ""

    def test_exhausted_budget_raises_despite_fallback(self):
        with pytest.raises(BudgetExhausted):
            make_client(EchoProvider(), budget=Budget(calls=0), failures="fall_back").chat([make_request()])

    def test_busy_server_pauses_all_threads(self):
        model, limits = EchoProvider(), RateLimit()
        busy = iter([TransientError("busy", retry_after=0.3)])
        original_complete = model.complete

        def complete(requests):
            for error in busy:
                raise error
            return original_complete(requests)

        model.complete = complete
        held = []
        limits.start_pause = held.append
        make_client(model, retry=Retry(1, initial_delay=0.0), limits=limits).chat([make_request()])
        assert held == [0.3]

    def test_internal_errors_propagate(self):
        model = EchoProvider(fail={"1": ZeroDivisionError()})
        threads = {*threading.enumerate()}  # of other tests, on their way out
        with pytest.raises(ZeroDivisionError):
            ChatClient(model).chat([make_request("0"), make_request("1")])
        started = [
            thread for thread in threading.enumerate() if thread not in threads and thread.name.startswith("llm")
        ]
        for thread in started:
            thread.join(20)
        assert not any(thread.is_alive() for thread in started)


def test_local_batches_start_immediately():
    model = EchoProvider(remote=False)
    calls = []
    original_complete = model.complete
    model.complete = lambda requests: calls.append(len(requests)) or original_complete(requests)
    replies = ChatClient(model).chat([make_request(f"{i}") for i in range(5)])
    assert calls == [5] and [reply.text for reply in replies] == list("01234")


def test_context_window():
    client = ChatClient(EchoProvider(context_window=20, max_tokens=10))
    assert client.fits([{"role": "user", "content": "a " * 6}])
    assert not client.fits([{"role": "user", "content": "a " * 7}])
    assert ChatClient(EchoProvider(max_tokens=10)).fits([{"role": "user", "content": "a " * 10**6}])


class TestStopping:
    """Tests of a signal during an outage, after which the client neither waits nor sends requests."""

    def client(self, should_stop, **policies):
        model = EchoProvider(fail={"a": TransientError("down")})
        return make_client(model, retry=Retry(5, initial_delay=60.0), should_stop=should_stop, **policies)

    @pytest.mark.parametrize("questions", [("a",), ("a", "a", "a")])
    def test_waits_end(self, questions):
        stop = threading.Event()
        threading.Timer(0.3, stop.set).start()
        client = self.client(stop.is_set, failures="fall_back")
        with pytest.raises(CallInterrupted):
            client.chat([make_request(text) for text in questions])
        assert len(client.provider.asked) == len(questions)

    def test_no_request_follows_stop(self):
        client = self.client(lambda: True)
        with pytest.raises(CallInterrupted):
            client.chat([make_request("b")])
        assert client.provider.asked == []

    def test_cached_replies_are_readable_after_stop(self, tmp_path):
        cached(tmp_path).chat([make_request("b")])
        client = self.client(lambda: True, cache=Cache(tmp_path))
        assert client.chat([make_request("b")])[0].text == "b"
