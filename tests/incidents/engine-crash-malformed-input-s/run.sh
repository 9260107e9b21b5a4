vllm serve /models/Qwen3-Coder-480B-A35B --served-model-name coder-480b --port 8000 \
  --data-parallel-size 4 --data-parallel-size-local 1 --data-parallel-address 10.20.1.11 --data-parallel-rpc-port 13345 \
  --tensor-parallel-size 8 --enable-expert-parallel
# $ ss -ltnp | grep -E '910|1022'  (after restart)
# LISTEN 0 2048 0.0.0.0:8000     users:(("vllm",pid=910))
# LISTEN 0 100  0.0.0.0:13345    users:(("VLLM::DPCoordin",pid=1022))
# LISTEN 0 100  10.20.1.11:29550 users:(("vllm",pid=910))
