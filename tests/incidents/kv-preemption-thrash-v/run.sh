python -m vllm.entrypoints.openai.api_server --model /ckpt/LIMO --served-model-name limo-32b --tensor-parallel-size 4 --max-model-len 32768 --gpu-memory-utilization 0.9
# eval: 48 problems sent at once at 02:09:40, max_tokens 16384, nothing else uses the server
