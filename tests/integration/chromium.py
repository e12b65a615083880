"""A headless Chromium, driven by its own protocol: open a page, ask it things, take pictures."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_S = 60.0


class Page:
    """One page. `problems` is what the browser's log says of errors."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if told.get("id") in self._waiting:
                self._waiting.pop(told["id"]).set_result(told)
            self._note(told.get("method", ""), told.get("params", {}))

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(about["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and about["type"] in {"error", "warning"}:
            self.problems.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in {"error", "warning"}:
            self.problems.append(str(about["entry"]))

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(PATIENCE_S):
            told = await answer
        assert "error" not in told, told
        return told["result"]

    async def ask(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(PATIENCE_S):
            # Before its script has run nothing of the page is there.
            asked = f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"
            while not await self.ask(asked):  # noqa: ASYNC110 - it is another process.
                await asyncio.sleep(0.1)

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def picture(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


@asynccontextmanager
async def opened(
    binary: str, folder: Path, url: str, *, width: int = 1400, height: int = 1000
) -> AsyncIterator[Page]:
    """A browser with one page, which is at this address."""
    process = await asyncio.create_subprocess_exec(
        binary,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        f"--user-data-dir={folder}",
        f"--window-size={width},{height}",
        "--remote-debugging-port=0",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(
                pages[0]["webSocketDebuggerUrl"], max_msg_size=1 << 28
            ) as socket:
                page = Page(socket)
                listening = asyncio.ensure_future(page.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                yield page
                listening.cancel()
    finally:
        process.kill()
        await process.wait()


async def _port(path: Path) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            text = await asyncio.to_thread(lambda: path.read_text() if path.exists() else "")
            if "\n" in text:
                return int(text.split("\n", 1)[0])
            await asyncio.sleep(0.1)
