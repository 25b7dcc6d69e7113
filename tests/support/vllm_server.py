"""Loopback server with the part of vLLM's protocol that `llm/sampler=vllm` uses; a small model samples the replies."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler

import torch
from transformers import AutoModelForCausalLM

from loopback import LoopbackServer


class VLLMServer(LoopbackServer):
    """Server of a model with adapters that are loaded and unloaded at runtime.

    Args:
        folder: folder of the model, whose path is the name of the served model.
        end: id of the token that ends a reply.
        with_loras: whether adapters can be loaded (VLLM_ALLOW_RUNTIME_LORA_UPDATING).

    Attributes:
        statuses: HTTP statuses of the next requests that fail.
        requests: bodies of all completion requests.
        adapters: names of loaded adapters with the model that has them.
        loads: names of all adapters in the order of loading.
        responsive: event that must be set for POST requests to be answered.
    """

    def __init__(self, folder, end, with_loras=True):
        self.folder, self.end, self.with_loras = folder, end, with_loras
        self.statuses, self.requests, self.adapters, self.loads = deque(), [], {}, []
        self.with_token_ids = True
        self.responsive = threading.Event()
        self.responsive.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_GET(self):
                self._send(200, {"data": [{"id": str(folder)}]})

            def do_POST(self):
                server.responsive.wait()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if server.statuses:
                    self._send(server.statuses.popleft(), {"error": "busy"})
                else:
                    self._send(*server.answer(self.path, body))

            def _send(self, status, content):
                text = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        super().__init__(Handler)

    @property
    def url(self):
        return f"{self.address}/v1"

    def answer(self, path, body):
        """Return status and content of the answer to a POST request."""
        if path.endswith("lora_adapter") and not self.with_loras:
            return 404, {"detail": "Not Found"}
        if path == "/v1/load_lora_adapter":
            from peft import PeftModel

            model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(self.folder), body["lora_path"])
            self.adapters[body["lora_name"]] = model.eval()
            self.loads.append(body["lora_name"])
            return 200, "Success: LoRA adapter added successfully."
        if path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
            return 200, "Success: LoRA adapter removed successfully."
        if body["model"] not in self.adapters:  # it was unloaded while the request waited
            return 404, {"error": f"the model {body['model']} does not exist"}
        self.requests.append(body)
        return 200, {"choices": [self.sample(self.adapters[body["model"]], body)]}

    def sample(self, model, body):
        """Return a choice: a reply sampled token by token."""
        generator = torch.Generator().manual_seed(body["seed"])
        ids, log_probs = list(body["prompt"]), []
        while len(log_probs) < body["max_tokens"] and (not log_probs or ids[-1] != self.end):
            with torch.no_grad():
                distribution = model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(distribution.exp(), 1, generator=generator)))
            log_probs.append(float(distribution[ids[-1]]))
        tokens = {"token_ids": ids[len(body["prompt"]) :]} if self.with_token_ids else {}
        return {"text": "", "logprobs": {"token_logprobs": log_probs}, **tokens}
