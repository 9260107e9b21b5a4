python -m vllm.entrypoints.openai.api_server --model /m/Mistral-Small-Instruct-2409 --max-model-len 16384 --gpu-memory-utilization 0.72 --max-num-seqs 256 --disable-log-requests
