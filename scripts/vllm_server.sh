#!/usr/bin/env bash
# Start a vLLM server for llm/sampler=vllm on a machine with a GPU, in an environment in which vLLM is installed.
#
#     scripts/vllm_server.sh MODEL [OPTION OF vllm serve ...]
#
# LORA_RANK: maximum rank of adapters (llm.learn.lora.rank), default 16. LORAS: maximum number of adapters in use at
# once, default 8; separate adapters for societies and players require more.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,7p "$0" >&2; exit 2; }
model=$1
shift
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True
exec vllm serve "$model" --enable-lora --max-lora-rank "${LORA_RANK:-16}" --max-loras "${LORAS:-8}" \
    --max-cpu-loras "$((2 * ${LORAS:-8}))" --generation-config vllm --logprobs-mode raw_logprobs "$@"
