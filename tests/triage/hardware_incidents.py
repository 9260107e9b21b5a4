# ruff: noqa: E501  (lines as programs print them)
"""Incidents of host memory, faulty cards, low clocks and offloaded layers, as people hand them over; and what only looks like one."""

from collections.abc import Iterable

import incident_texts as t
from incident_shape import Incident

BUSY = (t.stats("10:30:30", running=6, waiting=0), t.stats("10:30:40", running=6, waiting=0), t.stats("10:30:50", running=6, waiting=0))
UP = (t.started("09:00:00"), t.ready(), *BUSY)


def cgroup_kill(process: str, pid: int, gib: float, limit_gib: int) -> str:
    kib, limit = round(gib * (1 << 20)), limit_gib << 20
    return t.lines(
        f"[7093.543707] {process} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=986",
        "[7093.543711] CPU: 4 PID: 63635 Comm: python3 Not tainted 5.15.0-77-generic #86-Ubuntu",
        f"[7093.543780] memory: usage {limit}kB, limit {limit}kB, failcnt 141",
        f"[7093.543800] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-9c1d.scope,mems_allowed=0-1,oom_memcg=/kubepods.slice/pod1.slice,task_memcg=/kubepods.slice/pod1.slice/cri-containerd-9c1d.scope,task={process},pid={pid},uid=0",
        f"[7093.543880] Memory cgroup out of memory: Killed process {pid} ({process}) total-vm:{2 * kib}kB, anon-rss:{kib}kB, file-rss:52176kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986",
        f"[7093.559321] oom_reaper: reaped process {pid} ({process}), now anon-rss:0kB, file-rss:0kB, shmem-rss:92kB",
    )


def cards(*readings: Iterable[object], columns: str) -> str:
    """A table that `nvidia-smi --query-gpu=... --format=csv` prints."""
    return t.lines(columns, *(", ".join(map(str, reading)) for reading in readings))


def pod(reason: str, code: int, *events: str) -> str:
    return t.lines(
        "Name:             vllm-0",
        "Namespace:        llm",
        "Containers:",
        "  vllm:",
        "    Image:          vllm/vllm-openai:v0.13.0",
        "    State:          Running",
        "      Started:      Wed, 18 Nov 2026 10:31:40 +0000",
        "    Last State:     Terminated",
        f"      Reason:       {reason}",
        f"      Exit Code:    {code}",
        "      Started:      Wed, 18 Nov 2026 09:00:01 +0000",
        "      Finished:     Wed, 18 Nov 2026 10:31:02 +0000",
        "    Restart Count:  3",
        "    Limits:",
        "      memory:          64Gi",
        "      nvidia.com/gpu:  1",
        "    Requests:",
        "      memory:          32Gi",
        *(["Events:", "  Type     Reason     Age                From     Message", *events] if events else []),
    )


CLOCKS = "timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], temperature.gpu, power.draw [W], clocks_event_reasons.active"
SCHEDULER = "[{at}] Decode batch. #running-req: 8, #token: 41022, token usage: 0.31, cuda graph: True, gen throughput (token/s): {tps}, #queue-req: 0"
LLAMA_LOAD = (
    "ggml_cuda_init: found 1 CUDA devices:",
    "srv    load_model: loading model 'qwen2.5-32b-q5.gguf'",
    "llama_model_loader: loaded meta data with 35 key-value pairs and 771 tensors from qwen2.5-32b-q5.gguf (version GGUF V3 (latest))",
    "print_info: n_layer          = 64",
)
LLAMA_SLOW = (
    "slot launch_slot_: id  0 | task 0 | processing task",
    "slot print_timing: id  0 | task 0 | ",
    "prompt eval time =    2311.87 ms /   220 tokens (   10.51 ms per token,    95.16 tokens per second)",
    "       eval time =   38401.10 ms /   121 tokens (  317.36 ms per token,     3.15 tokens per second)",
    "      total time =   40712.97 ms /   341 tokens",
    "srv  update_slots: all slots are idle",
)
OLLAMA = (
    'time=2026-11-18T10:00:00.701Z level=INFO source=routes.go:1287 msg="Listening on 127.0.0.1:11434 (version 0.9.0)"',
    'time=2026-11-18T10:00:04.690Z level=INFO source=server.go:138 msg=offload library=cuda layers.requested=-1 layers.model=65 layers.offload=38 layers.split="" memory.available="[22.0 GiB]" memory.gpu_overhead="0 B" memory.required.full="31.0 GiB" memory.required.partial="21.6 GiB" memory.required.kv="8.0 GiB" memory.required.allocations="[21.6 GiB]" memory.weights.total="19.3 GiB"',
    "load_tensors: offloading 38 repeating layers to GPU",
    "load_tensors: offloaded 38/65 layers to GPU",
    "load_tensors:        CUDA0 model buffer size = 10511.43 MiB",
    "load_tensors:   CPU_Mapped model buffer size =  8565.00 MiB",
    "llama_context: n_ctx_per_seq (32768) < n_ctx_train (131072) -- the full capacity of the model will not be utilized",
    'time=2026-11-18T10:00:11.250Z level=INFO source=server.go:637 msg="llama runner started in 6.78 seconds"',
    '[GIN] 2026/11/18 - 10:02:19 | 200 |         1m41s |       127.0.0.1 | POST     "/api/chat"',
)

HARDWARE = [
    Incident(
        "a worker that the kernel killed at the pod's limit, in a dmesg without hours",
        {
            "engine.log": t.lines(
                *UP,
                t.core("10:31:05", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."),
                t.access(answer="500 Internal Server Error"),
            ),
            "dmesg.txt": cgroup_kill("VLLM::Worker_TP", 63214, 61.2, 64),
        },
        "host-ram-oom",
        "engine",
        ("Killed process 63214 (VLLM::Worker_TP)", "limit 67108864kB", "VllmWorker-1 died unexpectedly (exit code: -9)"),
    ),
    Incident(
        "a pod that was OOMKilled, and a log that simply ends",
        {"vllm.log": t.lines(*UP), "describe.txt": pod("OOMKilled", 137)},
        "host-ram-oom",
        "engine",
        ("Reason:       OOMKilled", "memory:          64Gi"),
    ),
    Incident(
        "a unit of systemd whose memory grew all morning",
        {
            "unit.txt": t.lines(
                "Nov 18 10:31:02 gpu-3 systemd[1]: vllm.service: A process of this unit has been killed by the OOM killer.",
                "Nov 18 10:31:02 gpu-3 systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
                "Nov 18 10:31:02 gpu-3 systemd[1]: vllm.service: Failed with result 'oom-kill'.",
            ),
            "vllm.log": t.lines(*UP),
        },
        "host-ram-oom",
        "engine",
        ("has been killed by the OOM killer",),
    ),
    Incident(
        "events of a node, and a table of a process that grew all morning",
        {
            "events.txt": t.lines(
                "LAST SEEN   TYPE      REASON      OBJECT       MESSAGE",
                "45s         Warning   OOMKilling  node/gpu-3   Memory cgroup out of memory: Killed process 4471 (VLLM::EngineCor) total-vm:300000000kB, anon-rss:243000000kB, file-rss:0kB",
                "40s         Normal    Pulled      pod/vllm-0   Container image already present on machine",
            ),
            "rss.csv": t.lines("timestamp,pid,process,rss_mib", *(f"2026-11-18T{7 + h:02d}:00:00Z,4471,VLLM::EngineCore,{21000 + 70000 * h}" for h in range(4))),
        },
        "host-ram-oom",
        "engine",
        ("Killed process 4471 (VLLM::EngineCor)", "231000"),
    ),
    Incident(
        "a compiler killed while an engine started",
        {
            "engine.log": t.lines(
                t.started("10:00:00"),
                t.core("10:04:00", "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"),
            ),
            "kern.log": t.lines(
                "2026-11-18T10:03:58.120000+00:00 gpu-3 kernel: Out of memory: Killed process 5120 (cicc) total-vm:13437184kB, anon-rss:12437184kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
            ),
        },
        "host-ram-oom",
        "engine",
        ("Killed process 5120 (cicc)",),
    ),
    Incident(
        "a card off the bus under a running engine",
        {
            "engine.log": t.lines(
                *UP,
                t.core("10:31:07", "EngineCore encountered a fatal error."),
                t.core("10:31:07", "torch.AcceleratorError: CUDA error: unspecified launch failure"),
                t.log("10:31:08", "AsyncLLM output_handler failed.", level="ERROR", source="async_llm.py:480"),
                t.access(answer="500 Internal Server Error"),
            ),
            "dmesg.txt": t.lines(
                "[612345.118201] NVRM: GPU at PCI:0000:3b:00: GPU-6a1f7e5c-0000-1111-2222-333344445555",
                "[612345.118210] NVRM: Xid (PCI:0000:3b:00): 79, pid=26164, name=VLLM::EngineCor, GPU has fallen off the bus.",
                "[612345.118214] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
                "[612345.121002] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            ),
        },
        "gpu-hardware-fault",
        "gpu",
        ("Xid (PCI:0000:3b:00): 79",),
    ),
    Incident(
        "memory errors of a card in the syslog, an engine of four workers gone",
        {
            "syslog": t.lines(
                "2026-11-18T10:31:06.100000+00:00 gpu-3 kernel: NVRM: Xid (PCI:0000:5e:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error",
                "2026-11-18T10:31:06.200000+00:00 gpu-3 kernel: NVRM: Xid (PCI:0000:5e:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.",
                "2026-11-18T10:31:06.300000+00:00 gpu-3 kernel: NVRM: Xid (PCI:0000:5e:00): 95, pid=26170, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
            ),
            "engine.log": t.lines(*UP, *t.TRACEBACK, t.access(answer="500 Internal Server Error")),
        },
        "gpu-hardware-fault",
        "gpu",
        ("Xid (PCI:0000:5e:00): 48", "EngineCore encountered a fatal error"),
    ),
    Incident(
        "one of three cards answers that it is lost",
        {
            "gpu.csv": cards(
                *(
                    (f"2026/11/18 10:3{m}:00", gpu, "[GPU is lost]", "[GPU is lost]", "[GPU is lost]")
                    if gpu == 1 and m > 0
                    else (f"2026/11/18 10:3{m}:00", gpu, "70123 MiB", "81559 MiB", "55 %")
                    for m in range(3)
                    for gpu in range(3)
                ),
                columns="timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]",
            ),
            "engine.log": t.lines(*UP, t.core("10:31:20", "EngineCore encountered a fatal error."), t.access(answer="500 Internal Server Error")),
        },
        "gpu-hardware-fault",
        "gpu",
        ("[GPU is lost]",),
    ),
    Incident(
        "eight cards become seven while requests stand still",
        {
            "gpu.csv": cards(
                *(
                    (f"2026/11/18 10:{minute}:00", gpu, 70123, 81559, 100 if minute > 30 else 60)
                    for minute in (28, 29, 31, 33)
                    for gpu in range(8)
                    if minute < 30 or gpu != 5
                ),
                columns="timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]",
            ),
            "m1.prom": t.scrape("10:31:00", num_requests_running=14.0, num_requests_waiting=2.0, generation_tokens_total=812.0, prompt_tokens_total=9000.0),
            "m2.prom": t.scrape("10:36:00", num_requests_running=14.0, num_requests_waiting=9.0, generation_tokens_total=812.0, prompt_tokens_total=9000.0),
        },
        "gpu-hardware-fault",
        "gpu",
    ),
    Incident(
        "a card that grew hot while tokens came slower",
        {
            "gpu.csv": cards(
                ("2026/11/18 10:00:00", 0, 99, 1980, 71, 640, "0x0000000000000000"),
                ("2026/11/18 10:05:00", 0, 99, 1965, 82, 655, "0x0000000000000004"),
                ("2026/11/18 10:10:00", 0, 99, 1215, 91, 410, "0x0000000000000040"),
                ("2026/11/18 10:15:00", 0, 100, 1200, 92, 402, "0x0000000000000048"),
                columns=CLOCKS,
            ),
            "vllm.log": t.lines(*(t.stats(f"10:{m:02d}:00", running=8, waiting=0, generation=2000.0 if m < 8 else 1150.0) for m in range(0, 16, 2))),
        },
        "slow-decode-gpu-throttle",
        "decode",
        ("1215", "0x0000000000000040"),
    ),
    Incident(
        "one slow card among four, told by columns of its own",
        {
            "smi.csv": cards(
                *(
                    (f"2026/11/18 10:0{m}:00", gpu, "98 %", "1065 MHz" if gpu == 3 else "1755 MHz", "Active" if gpu == 3 else "Not Active", "Not Active")
                    for m in range(4)
                    for gpu in range(4)
                ),
                columns="timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], clocks_throttle_reasons.hw_thermal_slowdown, clocks_throttle_reasons.sw_power_cap",
            ),
            "sglang.log": t.lines(*(SCHEDULER.format(at=f"2026-11-18 10:0{m}:00", tps=f"{410 - m}.0") for m in range(4))),
        },
        "slow-decode-gpu-throttle",
        "decode",
        ("1065 MHz",),
    ),
    Incident(
        "a power limit that somebody set",
        {
            "gpu.csv": cards(
                ("2026/11/18 10:00:00", 0, 98, 1755, 62, 695, 700),
                ("2026/11/18 10:05:00", 0, 99, 1740, 63, 698, 700),
                ("2026/11/18 10:10:00", 0, 99, 990, 55, 300, 300),
                ("2026/11/18 10:15:00", 0, 99, 1005, 54, 299, 300),
                columns="timestamp, index, utilization.gpu [%], clocks.sm [MHz], temperature.gpu, power.draw [W], power.limit [W]",
            )
        },
        "slow-decode-gpu-throttle",
        "decode",
        ("990",),
    ),
    Incident(
        "a third of a model on the CPU of a llama.cpp server",
        {
            "server.log": t.lines(
                *LLAMA_LOAD,
                "load_tensors: offloading 40 repeating layers to GPU",
                "load_tensors: offloaded 40/65 layers to GPU",
                "load_tensors:   CPU_Mapped model buffer size =  8165.00 MiB",
                "load_tensors:        CUDA0 model buffer size = 13311.43 MiB",
                "srv  llama_server: model loaded",
                *LLAMA_SLOW,
            ),
            "gpu.csv": cards(
                *((f"2026/11/18 10:0{m}:00", 0, "22804 MiB", "24564 MiB", "1760 MiB", "7 %") for m in range(4)),
                columns="timestamp, index, memory.used [MiB], memory.total [MiB], memory.free [MiB], utilization.gpu [%]",
            ),
        },
        "slow-decode-cpu-offload",
        "decode",
        ("offloaded 40/65 layers to GPU", "7 %", "317.36 ms per token"),
    ),
    Incident(
        "an Ollama with more context than the card has room for",
        {
            "journal.txt": t.lines(*(line if line.startswith("[GIN]") else f"Nov 18 10:00:04 box ollama[1617]: {line}" for line in OLLAMA)),
            "ps.txt": t.lines("NAME           ID              SIZE     PROCESSOR          CONTEXT    UNTIL", "qwen2.5:32b    9f13ba1299af    31 GB    33%/67% CPU/GPU    32768      4 minutes from now"),
        },
        "slow-decode-cpu-offload",
        "decode",
        ("offloaded 38/65 layers to GPU",),
    ),
    Incident(
        "weights of a vLLM that cross PCIe at each step",
        {
            "serve.args": "vllm serve Qwen/Qwen2.5-32B --max-model-len 8192 --cpu-offload-gb 24\n",
            "trace.json": t.spans(t.engine_span(queue=0.01, prefill=1.4, decode=88.0, e2e=89.5, prompt_tokens=200, completion_tokens=180)),
            "engine.log": t.lines(*(t.stats(f"10:20:{s}0", running=1, waiting=0, prompt=0.0, generation=2.0) for s in range(6))),
        },
        "slow-decode-cpu-offload",
        "decode",
        ("--cpu-offload-gb 24",),
    ),
]  # fmt: skip

NO_MEMORY_KILL = [
    Incident(
        "a worker killed by hand, with a dmesg in which nothing was killed",
        {
            "engine.log": t.lines(
                *UP,
                t.core("10:31:05", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."),
                t.access(answer="500 Internal Server Error"),
            ),
            "dmesg.txt": t.lines(
                "[    0.000000] Linux version 5.15.0-77-generic", "[   12.001200] nvidia: loading out-of-tree module taints kernel."
            ),
        },
        "engine-crash",
        "engine",
    ),
    Incident(
        "an illegal access of the program, as the driver notes it",
        {
            "engine.log": t.lines(*UP, *t.TRACEBACK, t.access(answer="500 Internal Server Error")),
            "dmesg.txt": t.lines(
                "[612345.118210] NVRM: Xid (PCI:0000:3b:00): 31, pid=26164, name=VLLM::EngineCor, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
                "[612345.121002] NVRM: Xid (PCI:0000:3b:00): 43, pid=26164, name=VLLM::EngineCor, Ch 00000008",
            ),
        },
        "engine-crash",
        "engine",
    ),
]
"""An engine died, and neither of memory nor of a card."""

HEALTHY_HARDWARE = [
    Incident(
        "a probe that killed a healthy container, whatever the runtime wrote beside it",
        {
            "describe.txt": pod(
                "OOMKilled",
                143,
                "  Warning  Unhealthy  2m (x9 over 9m)    kubelet  Liveness probe failed: Get \"http://10.42.0.14:8000/health\": context deadline exceeded",
                "  Normal   Killing    2m (x3 over 9m)    kubelet  Container vllm failed liveness probe, will be restarted",
            ),
            "vllm.log": t.lines(t.started("10:00:00"), t.core("10:02:00", "Starting to load model Qwen/Qwen3-32B...", "INFO")),
        },
        label="crash-loop-probe-kill",
    ),
    Incident(
        "the kernel killed a browser, and the engine served on",
        {
            "kern.log": "2026-11-18T10:30:35.000000+00:00 gpu-3 kernel: Out of memory: Killed process 901 (chrome) total-vm:9437184kB, anon-rss:4437184kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:300\n",
            "engine.log": t.lines(*UP, *(t.stats(f"10:3{m}:00", running=6, waiting=0) for m in range(1, 9))),
        },
    ),
    Incident(
        "the kernel killed a python that was not the engine's",
        {
            "kern.log": "2026-11-18T10:30:35.000000+00:00 gpu-3 kernel: Out of memory: Killed process 901 (python3) total-vm:9437184kB, anon-rss:4437184kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:300\n",
            "engine.log": t.lines(*UP, *(t.stats(f"10:3{m}:00", running=6, waiting=0) for m in range(1, 9))),
        },
    ),
    Incident(
        "an Xid that names a browser beside a healthy engine",
        {
            "dmesg.txt": "[  812.118210] NVRM: Xid (PCI:0000:01:00): 31, pid=901, name=firefox, Ch 00000008, intr 00000000. MMU Fault\n",
            "engine.log": t.lines(*UP),
        },
        label="benign-noise",
    ),
    Incident(
        "a row that will be remapped at the next reset",
        {
            "dmesg.txt": "[  812.118210] NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.\n",
            "engine.log": t.lines(*UP),
        },
    ),
    Incident(
        "a memory fault that some program met at some time, and an engine that makes tokens to the last",
        {
            "dmesg.txt": "[  812.118210] NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No\n",
            **{
                f"m{n}.prom": t.scrape(f"10:3{n}:00", num_requests_running=4.0, num_requests_waiting=0.0, generation_tokens_total=9000.0 * n)
                for n in range(3)
            },
        },
    ),
    Incident(
        "the clocks of a card that has nothing to do",
        {
            "gpu.csv": cards(
                ("2026/11/18 10:00:00", 0, 97, 1980, 70, 640, "0x0000000000000000"),
                *((f"2026/11/18 10:{m}:00", 0, 0, 210, 41, 71, "0x0000000000000001") for m in (10, 15, 20)),
                columns=CLOCKS,
            ),
            "vllm.log": t.lines(*(t.stats(f"10:{m}:00", running=0, waiting=0, generation=0.0, kv=0.0) for m in (10, 15, 20))),
        },
        label="no-incident",
    ),
    Incident(
        "a card at its ordinary power limit",
        {
            "gpu.csv": cards(
                ("2026/11/18 10:00:00", 0, 99, 1980, 60, 540, "0x0000000000000000"),
                *((f"2026/11/18 10:{m}:00", 0, 100, 1410 + m, 71, 699, "0x0000000000000004") for m in (10, 15, 20, 25)),
                columns=CLOCKS,
            )
        },
    ),
    Incident(
        "a llama.cpp server with every layer on its GPU",
        {
            "server.log": t.lines(
                *LLAMA_LOAD,
                "load_tensors: offloaded 65/65 layers to GPU",
                "load_tensors:   CPU_Mapped model buffer size =   508.00 MiB",
                "load_tensors:        CUDA0 model buffer size = 21311.43 MiB",
                "srv  llama_server: model loaded",
            )
        },
    ),
    Incident(
        "an Ollama whose model went back onto the GPU when its context was cut",
        {
            "server.log": t.lines(*OLLAMA[:4], *(line.replace("38/65", "65/65").replace("offload=38", "offload=65").replace("10:00:", "10:09:") for line in OLLAMA[1:4]))
        },
    ),
]  # fmt: skip
"""Nothing here may be named, neither a cause nor health."""
