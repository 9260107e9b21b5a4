"""The libraries, each asked in each of its ways; all read the reply to its end, and none repeats by itself."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import httpx
import httpx2
import openai
import requests
from llm_server import PROMPT

PATH: Final = "/v1/chat/completions"
Ask = Callable[..., None]
"""ask(url, model, stream, timeout_s, headers): returns when the reply has been read, raises what the library raises."""


def body(model: str, stream: bool) -> dict[str, Any]:
    return {"model": model, "stream": stream, "max_tokens": 16, "messages": [{"role": "user", "content": PROMPT}]}


def _httpx(module: Any) -> Ask:
    def ask(url: str, model: str, stream: bool, timeout_s: float = 5, headers: Mapping[str, str] | None = None) -> None:
        timeout = module.Timeout(timeout_s, connect=1)
        with (
            module.Client(timeout=timeout, trust_env=False) as client,
            client.stream("POST", url + PATH, json=body(model, stream), headers=headers) as reply,
        ):
            reply.raise_for_status()
            for _ in reply.iter_lines():
                pass

    return ask


def _httpx_async(module: Any) -> Ask:
    def ask(url: str, model: str, stream: bool, timeout_s: float = 5, headers: Mapping[str, str] | None = None) -> None:
        async def main() -> None:
            async with module.AsyncClient(timeout=module.Timeout(timeout_s, connect=1), trust_env=False) as client:
                if not stream:
                    (await client.post(url + PATH, json=body(model, stream), headers=headers)).raise_for_status()
                    return
                async with client.stream("POST", url + PATH, json=body(model, stream), headers=headers) as reply:
                    reply.raise_for_status()
                    async for _ in reply.aiter_lines():
                        pass

        asyncio.run(main())

    return ask


def _requests(url: str, model: str, stream: bool, timeout_s: float = 5, headers: Mapping[str, str] | None = None) -> None:
    with requests.Session() as session:
        session.trust_env = False
        reply = session.post(url + PATH, json=body(model, stream), stream=stream, timeout=(1, timeout_s), headers=headers)
        reply.raise_for_status()
        for _ in reply.iter_lines():
            pass


def _aiohttp(url: str, model: str, stream: bool, timeout_s: float = 5, headers: Mapping[str, str] | None = None) -> None:
    async def main() -> None:
        timeout = aiohttp.ClientTimeout(total=60, sock_connect=1, sock_read=timeout_s)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url + PATH, json=body(model, stream), headers=headers) as reply,
        ):
            reply.raise_for_status()
            if not stream:
                await reply.json()
            async for _ in reply.content:
                pass

    asyncio.run(main())


def _openai(url: str, model: str, stream: bool, timeout_s: float = 5, headers: Mapping[str, str] | None = None) -> None:
    timeout = httpx2.Timeout(timeout_s, connect=1)
    with openai.OpenAI(base_url=url + "/v1", api_key="x", timeout=timeout, max_retries=0) as client:
        reply = client.chat.completions.create(**body(model, stream), extra_headers=headers)
        if stream:
            for _ in reply:
                pass


def _openai_async(url: str, model: str, stream: bool, timeout_s: float = 5, headers: Mapping[str, str] | None = None) -> None:
    async def main() -> None:
        timeout = httpx2.Timeout(timeout_s, connect=1)
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", timeout=timeout, max_retries=0) as client:
            reply = await client.chat.completions.create(**body(model, stream), extra_headers=headers)
            if stream:
                async for _ in reply:
                    pass

    asyncio.run(main())


CALLERS: Final[dict[str, Ask]] = {
    "httpx": _httpx(httpx),
    "httpx-async": _httpx_async(httpx),
    "httpx2": _httpx(httpx2),
    "httpx2-async": _httpx_async(httpx2),
    "requests": _requests,
    "aiohttp": _aiohttp,
    "openai": _openai,
    "openai-async": _openai_async,
}
