"""Settings of the agent on the GPU host: `[agent]` in lensd.toml."""

import msgspec


class WatchedEngine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One engine to scrape, whose log to tail and whose process to watch."""

    url: str
    name: str = ""  # default: host:port of the URL
    kind: str = "vllm"  # dialect
    log: str = ""  # its log: a path, - (standard input), journald:UNIT, docker:NAME or pod:NAMESPACE/POD/CONTAINER
    lifecycle: str = ""  # who says how it ended: systemd:UNIT, docker:NAME or pod:NAMESPACE/POD/CONTAINER; default: whom `log` names
    model_dir: str = ""  # where its config.json lies
    pid: int = 0  # default: the process that listens on the URL's port
    api_key_file: str = ""  # credential the engine wants from us


class AccessLog(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The access log of a proxy before the engines."""

    log: str  # as an engine's log
    kind: str  # dialect: nginx, envoy
    engine: str = ""  # name of the engine behind it, where that is one


class AgentConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    engines: tuple[WatchedEngine, ...] = ()  # those of this host
    access_logs: tuple[AccessLog, ...] = ()  # of proxies on this host
    kmsg: bool = True  # read the kernel's log for GPU faults and processes killed for want of memory
    docker_socket: str = "/var/run/docker.sock"  # asked read-only, for what is called docker:NAME
    pod_logs: str = "/var/log/pods"  # where the kubelet keeps them, for what is called pod:NAMESPACE/POD/CONTAINER
    scrape_interval_s: float = 1.0  # of each engine's /metrics
    scrape_timeout_s: float = 2.0  # after which the engine counts as not answering
    gpu_interval_s: float = 1.0  # of what the GPUs' driver tells: NVML, or AMD SMI
    gpu_exporters: tuple[
        str, ...
    ] = ()  # URLs of DCGM exporters, scraped each 10 s; a card that the driver tells us of is not taken from them
    memory_interval_s: float = 5.0  # of the host's memory and what the engines' processes hold of it
    max_lines_per_s: int = 2000  # of one log; what comes over it waits
    export_url: str = "http://127.0.0.1:4318"  # the OTLP door of `lensd serve`
    token_file: str = ""  # bearer token of that door; default: the one in the store's folder
