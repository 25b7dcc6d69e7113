"""Sinks: where metrics, texts and pictures of a run go beside `metrics.jsonl`. What one is: `llmrl.run.sinks.sink`."""
