"""Sinks, which receive metrics, texts and pictures of a run. They are described in `llmrl.run.sink`."""
