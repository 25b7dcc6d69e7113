"""Cache folder shared by many processes: no damaged files and no repeated payments."""

import json
import random
import threading
import time
from collections import defaultdict
from itertools import count

import pytest

import commands
from fake_openai_server import FakeOpenAIServer
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.cache import Cache, compute_request_key
from llmrl.llms.rate_limit import RateLimit
from models import make_client, make_openai_model

PROCESSES, SHARE = 8, 50
"""Two processes each have the same questions, so half of all calls are duplicates."""


@pytest.fixture(scope="module")
def context():
    return commands.get_forkserver_context()


def ask(text):
    return ChatRequest(({"role": "user", "content": text},))


def client(url, folder, concurrency=1):
    return make_client(make_openai_model(url, "fake-model"), Cache(folder), limits=RateLimit(concurrency))


def ask_all(url, folder, number, start, results):
    """One process's share: (question, when it was asked, when the reply was there, whether it was paid, the reply)."""
    rng = random.Random(number)
    # The two processes with these questions go through them side by side, now one ahead and now the other.
    order = sorted(range(SHARE), key=lambda i: i + rng.uniform(-10, 10))
    chat = client(url, folder)
    start.wait()
    replies = []
    for i in order:
        question = f"question {number % (PROCESSES // 2)}.{i}"
        start_time = time.monotonic()
        [reply] = chat.chat([ask(question)])
        replies.append((question, start_time, time.monotonic(), reply.attempts > 0, reply.text))
    chat.close()
    results.put(replies)


def test_eight_processes_share_folder(tmp_path, context):
    numbers = count()
    start, results = context.Barrier(PROCESSES), context.SimpleQueue()
    # No two answers are alike, not even to the same question.
    with FakeOpenAIServer(lambda messages: f"answer {next(numbers)} to {messages[0]['content']}") as server:
        processes = [
            context.Process(target=ask_all, args=(server.url, tmp_path, number, start, results))
            for number in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        calls = defaultdict(list)
        for _ in processes:
            for question, *call in results.get():
                calls[question].append(call)
        for process in processes:
            process.join()
            assert process.exitcode == 0
        identity = make_openai_model(server.url, "fake-model").identity
    distinct, n_charges = PROCESSES * SHARE // 2, 0
    assert len(calls) == distinct
    for question, records in calls.items():
        (first, first_end, _, text), (second, _, _, second_text) = sorted(records)
        bills = [charge for *_, charge, _ in records]
        n_charges += sum(bills)
        # Whoever asks after a reply is there finds it; only those who ask meanwhile may pay as well.
        assert sum(bills) == 1 or (sum(bills) == 2 and second < first_end), (question, first, records)
        assert text == second_text, "both must go on with the reply that is kept"
    assert n_charges == server.delivered.total() == len(server.requests)
    assert n_charges < 1.5 * distinct, "they were hardly ever in step, yet nothing was shared"

    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == distinct and not list(tmp_path.rglob("*.tmp"))
    for path in files:
        entry = json.loads(path.read_text())
        [message] = entry["messages"]
        question = "\n".join(message["content"])
        assert path.stem == entry["hash"] == compute_request_key(identity, ask(question))
        reply = Cache(tmp_path).get(path.stem)
        assert reply.text == calls[question][0][-1] and reply.attempts == 0


def test_waiting_request_rechecks_cache(tmp_path):
    """A long batch does not pay for replies that other processes store meanwhile."""
    replies = []

    def reply(messages):
        text = messages[0]["content"]
        if text == "long":
            replies.extend(second_client.chat([ask("next")]))
        return text.upper()

    with FakeOpenAIServer(reply) as server:
        second_client = client(server.url, tmp_path)
        chat = client(server.url, tmp_path)
        assert [r.text for r in chat.chat([ask("long"), ask("next")])] == ["LONG", "NEXT"]
        assert [r.attempts for r in replies] == [1]
        assert list(server.delivered.values()) == [1, 1]
        second_client.close(), chat.close()


TEXT = "half a line of text, and one more\n" * 20_000


def write_forever(folder, first):
    cache = Cache(folder)
    for i in count(first):
        request = ask(f"question {i}")
        cache.put(compute_request_key({}, request), {}, request, ChatReply(TEXT))


@pytest.mark.long
def test_dead_writer_leaves_no_partial_record(tmp_path, context):
    rng = random.Random(0)
    for i in range(200):  # how many kills fall into a write depends on what else runs here
        if i >= 25 and len(list(tmp_path.rglob("*.tmp"))) > 5:
            break
        process = context.Process(target=write_forever, args=(tmp_path, i * 1000))
        n_initial = len(list(tmp_path.rglob("*.json")))
        process.start()
        while len(list(tmp_path.rglob("*.json"))) <= n_initial + 1:  # how soon it writes depends on what else runs here
            time.sleep(0.002)
        process.join(timeout=rng.random() * 0.05)
        process.kill()
        process.join()
    entries, partial = list(tmp_path.rglob("*.json")), list(tmp_path.rglob("*.tmp"))
    assert len(entries) > 25 and len(partial) > 5, "the kills were to fall between writes and into them"
    cache = Cache(tmp_path)
    for path in entries:
        assert cache.get(path.stem).text == TEXT
    # What a killed process left is in nobody's way.
    for path in partial:
        key = path.name.split(".")[1]
        assert cache.put(key, {}, ask("again"), ChatReply("anew")).text in ("anew", TEXT)
        assert cache.get(key).text in ("anew", TEXT)


def test_threads_share_cache(tmp_path):
    requests = [ask(f"question {i % 20}") for i in range(200)]
    numbers = count()
    with FakeOpenAIServer(lambda messages: f"answer {next(numbers)}") as server:
        clients = [client(server.url, tmp_path) for _ in range(8)]
        texts = [[] for _ in clients]

        def work(chat, mine):
            mine.extend(reply.text for request in requests for reply in chat.chat([request]))

        threads = [threading.Thread(target=work, args=pair) for pair in zip(clients, texts, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for chat in clients:
            chat.close()
    # Asked ten times by each client, a question has ten answers, the same ten for all.
    assert all(mine == texts[0] for mine in texts) and len(set(texts[0])) == 200
    assert len(list(tmp_path.rglob("*.json"))) == 200 and not list(tmp_path.rglob("*.tmp"))
