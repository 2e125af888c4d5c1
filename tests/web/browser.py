"""A headless Chromium, where there is one: `needs_browser` skips a test that has none, and says what is missing."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
DRIVER = shutil.which("chromedriver") or ""
_MISSING = [
    *([] if importlib.util.find_spec("selenium") else ["selenium (dependency group browser)"]),
    *([] if CHROMIUM else ["chromium"]),
    *([] if DRIVER else ["chromedriver"]),
]
needs_browser = pytest.mark.skipif(bool(_MISSING), reason=f"there is no {', no '.join(_MISSING)}")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,860",
    "--ignore-certificate-errors",  # the page's certificate is made by the controller itself
)

CONTRAST = """
const light = (c) => { const v = c / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const parse = (text) => { const n = text.match(/[0-9.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const lum = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
const back = (e) => {
  for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3]) return c; }
  return [255, 255, 255, 1];
};
const bad = [];
for (const e of document.querySelectorAll("body *")) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
  const [a, b] = [lum(parse(getComputedStyle(e).color)), lum(back(e))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) bad.push(`${e.tagName} ${e.className} "${e.textContent.slice(0, 30)}": ${ratio.toFixed(2)}`);
}
return bad;
"""
"""Texts whose contrast with what is behind them is less than WCAG AA asks for."""

UNNAMED = """
const bad = [];
const every = (what) => [...document.querySelectorAll(what)];
const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length);
for (const e of every("a, button, input, select, [role=img], [role=region], nav"))
  if (!named(e)) bad.push(e.outerHTML.slice(0, 120));
for (const t of every("table"))
  if (!t.caption || [...t.tHead.rows[0].cells].some((c) => c.scope !== "col")) bad.push("table");
for (const svg of every("svg"))
  if (!svg.getAttribute("aria-label") && svg.getAttribute("aria-hidden") !== "true") bad.push("svg");
for (const tag of ["main", "header", "footer", "h1", "h2"]) if (every(tag).length !== 1) bad.push(tag);
const levels = every("h1, h2, h3, h4").map((e) => Number(e.tagName[1]));
levels.reduce((before, now) => { if (now > before + 1) bad.push(`h${now} after h${before}`); return now; }, 0);
const ids = every("[id]").map((e) => e.id);
if (new Set(ids).size !== ids.length) bad.push("an id twice");
if (!document.documentElement.lang) bad.push("no language");
return bad;
"""
"""What a screen reader could not name or find its way by."""


class Browser:
    """One window. Calls block; `until` waits for what the page makes of itself."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get("about:blank")
        self.driver.get_log("browser")  # of whatever was open before
        self.driver.get(url)

    def js(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    @property
    def text(self) -> str:
        """What can be read."""
        return str(self.js("return document.body.innerText"))

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        ends = time.monotonic() + 300
        while time.monotonic() < ends:
            if found := holds():
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited for {what}; the page reads:\n{self.text}")

    def reads(self, *texts: str) -> None:
        """Until all of these can be read."""
        self.until(lambda: all(text in self.text for text in texts), " and ".join(map(repr, texts)))

    def press(self, *keys: str) -> None:
        """Keys by name (TAB, ENTER) or text, sent to whatever has the focus."""
        named = importlib.import_module("selenium.webdriver.common.keys").Keys
        chains = importlib.import_module("selenium.webdriver.common.action_chains").ActionChains
        chains(self.driver).send_keys(*(getattr(named, key, key) for key in keys)).perform()

    def focused(self) -> str:
        return str(self.js("const e = document.activeElement; return e.id || e.textContent.trim() || e.tagName"))

    def theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def sign_in(self, token: str) -> None:
        self.until(lambda: self.js("return document.activeElement.id === 'token'"), "the field for the token")
        self.press(token, "ENTER")

    def accessible(self) -> None:
        """In both themes."""
        for theme in ("light", "dark"):
            self.theme(theme)
            assert self.js(CONTRAST) == [], theme
        assert self.js(UNNAMED) == []
        self.theme("light")

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.driver.get_screenshot_as_png())

    def complaints(self) -> list[str]:
        """Errors on the console: of scripts, and of the content security policy. A refused sign-in is none."""
        return [
            e["message"]
            for e in self.driver.get_log("browser")
            if e["level"] == "SEVERE" and " 401 " not in e["message"]
        ]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    webdriver: Any = importlib.import_module("selenium.webdriver")
    service: Any = importlib.import_module("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=service.Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
