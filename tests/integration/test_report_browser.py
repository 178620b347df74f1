"""Reports in a real browser: a headless Chromium, driven through its debugging pipe with the standard library."""

import contextlib
import dataclasses
import json
import os
import select
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from numpyro.distributions import constraints

from bernflow.diagnostics import judge
from bernflow.flows.base import AbstractDistribution
from bernflow.models.base import Site
from bernflow.posterior import Posterior
from bernflow.posterior.structure import NamedStructure
from bernflow.posterior.tables import Axes
from bernflow.report.material import Material
from bernflow.report.page import write_page
from bernflow.target import Layout

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0
# A browser expects its pipes at the descriptors 3 and 4.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
EVIL = "<script>document.title = 'run'</script>"


class Browser:
    """One page of a headless browser."""

    def __init__(self, program, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # High numbers, so that putting one into its place does not overwrite the other.
        moved = [_at_least(10, descriptor) for descriptor in (to_browser, from_browser)]
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", LAUNCH, *map(str, moved), *command],
            pass_fds=moved,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in moved:
            os.close(descriptor)
        self._number, self._buffer, self.events = 0, b"", []
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            content = os.read(self._read, 1 << 16)
            if not content:
                raise BrokenPipeError("the browser has ended")
            self._buffer += content
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1200, height=900, dark=False, mobile=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def ask(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def complaints(self):
        """Errors and warnings of the console, and addresses that were asked for."""
        self.ask("1")
        bad = [e for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")]
        bad += [e for e in self.events if e.get("method") == "Log.entryAdded"]
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return bad + [url for url in asked if not url.startswith(("file:", "data:"))]

    def close(self):
        with contextlib.suppress(OSError, TimeoutError):
            self._session = None
            self.send("Browser.close")
        for descriptor in (self._write, self._read):
            os.close(descriptor)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _at_least(number, descriptor):
    import fcntl

    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, number)
    os.close(descriptor)
    return copy


class Gaussian(AbstractDistribution):
    dim: int

    def sample_and_log_prob(self, key, num):
        x = jax.random.normal(key, (num, self.dim))
        return x, self.log_prob(x)

    def log_prob(self, x):
        return jax.scipy.stats.norm.logpdf(x).sum(axis=-1)

    def recipe(self):
        return {}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = next((path for path in map(shutil.which, NAMES) if path), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    try:
        page = Browser(program, tmp_path_factory.mktemp("profile"))
    except (OSError, TimeoutError) as error:
        pytest.skip(f"{program} cannot be started ({error})")
    yield page
    page.close()


@pytest.fixture(scope="module")
def post():
    sites = (
        Site("tau", (), constraints.positive),
        Site("b", (120,), constraints.real),
        Site(EVIL, (), constraints.real),
    )
    layout = Layout(sites)
    history = {"step": np.arange(1, 41), "elbo": -np.exp(-np.arange(40.0)), "elbo_se": np.full(40, 0.1)}
    log_weights = np.random.default_rng(0).normal(size=4000) * 0.4
    return Posterior(Gaussian(layout.dim), layout, None, judge(log_weights), history, {"family": "bernstein"})


@pytest.fixture(scope="module")
def report(post, tmp_path_factory):
    return post.report(tmp_path_factory.mktemp("page") / "report.html", num=500, title="A report")


def column(browser, number):
    return browser.ask(
        f"[...document.querySelectorAll('#parameters tbody tr')].map(r => r.cells[{number}].textContent)"
    )


def click(browser, selector):
    browser.ask(f"document.querySelector({selector!r}).click()")


def test_page_loads_alone_and_runs_no_foreign_script(browser, report):
    browser.open(report)
    assert browser.complaints() == []
    assert browser.ask("document.title") == "A report"
    assert EVIL in browser.ask("document.body.innerText")
    sizes = browser.ask(
        "[...document.querySelectorAll('figure svg')].map(s => [s.getBBox().width, s.getBoundingClientRect().height])"
    )
    assert len(sizes) == 24 + 2
    assert min(min(size) for size in sizes) > 20
    # The picture inside of a picture: the clouds of the pairs.
    assert browser.ask("document.querySelectorAll('svg image').length") > 0


def test_table_sorts_filters_and_has_pages(browser, report):
    browser.open(report)
    assert browser.ask("document.getElementById('shown').textContent") == "Rows 1 to 50 of 122"
    assert column(browser, 0)[:2] == ["tau", "b[0]"]
    click(browser, "th:nth-child(2) button")
    first = [float(text) for text in column(browser, 1)]
    click(browser, "#next")
    second = [float(text) for text in column(browser, 1)]
    assert len(first) == len(second) == 50
    assert first + second == sorted(first + second)
    assert browser.ask("document.querySelector('th:nth-child(2)').getAttribute('aria-sort')") == "ascending"
    click(browser, "th:nth-child(2) button")
    assert float(column(browser, 1)[0]) == max(float(column(browser, 1)[0]), *second)
    assert browser.ask("document.querySelector('th:nth-child(2)').getAttribute('aria-sort')") == "descending"
    click(browser, "th:nth-child(1) button")
    assert column(browser, 0)[1:5] == ["b[0]", "b[1]", "b[2]", "b[3]"]  # as people count, not b[10] after b[1]
    click(browser, "#everything")
    assert len(column(browser, 0)) == 122
    browser.ask("{const i = document.getElementById('filter'); i.value = 'B[11'; i.dispatchEvent(new Event('input'))}")
    assert column(browser, 0) == ["b[11]", *(f"b[{i}]" for i in range(110, 120))]
    assert browser.ask("document.getElementById('shown').textContent") == "Rows 1 to 11 of 11 (122 without filter)"
    assert browser.complaints() == []


def test_table_sorts_by_keyboard_with_a_visible_focus(browser, report):
    browser.open(report)
    browser.ask("document.getElementById('filter').focus()")
    for _ in range(12):
        browser.press("Tab", 9)
        if browser.ask("document.activeElement.textContent") == "sd":
            break
    assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter", 13)
    values = [float(text) for text in column(browser, 2)]
    assert values == sorted(values)
    assert browser.ask("document.querySelector('th:nth-child(3)').getAttribute('aria-sort')") == "ascending"


def poor(rng):
    """A small posterior whose fit is poor, with long names and large numbers."""
    name = "a_rather_long_name_of_a_parameter_of_the_model"
    sites = (Site(name, (), constraints.real), Site("b", (3,), constraints.real))
    return material_of(sites, rng, 5.0 * rng.normal(size=4000), shift=-123456.789)


def stan(rng):
    """The material of a run of a Stan program: indices from 1, unknown supports, replicates and an origin."""
    sites = (Site("mu", (), None), Site("L", (2, 2), None), Site("theta", (8,), None))
    y = rng.normal(size=40)
    found = material_of(sites, rng, 0.3 * rng.normal(size=4000))
    replicates = rng.normal(size=(200, 40))
    return dataclasses.replace(
        found,
        axes=Axes(first=1),
        draws={**found.draws, "y_rep": replicates},
        observed={"y": y},
        constants={"N": np.array(40), "sigma": rng.normal(size=8)},
        replicates={"y_rep": replicates},
        origin=(("Model", "schools.stan"), ("Model, SHA-256", 64 * "8")),
        notes=("Made from the files of a run, without its model.",),
    )


def large(rng):
    """A thousand parameters in blocks."""
    found = material_of((Site("tau", (), constraints.positive), Site("b", (1000,), constraints.real)), rng)
    blocks = tuple((f"b[{i}]",) for i in range(1000))
    return dataclasses.replace(found, structure=NamedStructure(("tau",), blocks))


def small(rng):
    """Two parameters with a prior, weighted."""
    found = material_of((Site("mu", (), constraints.real), Site("tau", (), constraints.positive)), rng)
    prior = {"mu": 3.0 * rng.normal(size=2000), "tau": np.abs(rng.normal(size=2000))}
    return dataclasses.replace(found, prior=prior, weighted=True, log_weights=0.1 * rng.normal(size=4000))


def material_of(sites, rng, log_weights=None, shift=0.0):
    draws = {site.name: shift + rng.normal(size=(1000, *site.shape)) for site in sites}
    history = {"step": np.arange(1, 41), "elbo": -np.exp(-np.arange(40.0)), "elbo_se": np.full(40, 0.1)}
    settings = {"family": "bernstein", "steps": 1000, "key": 3, "versions": {"bernflow": "0.1.0", "jax": "0.4"}}
    diagnostics = judge(np.zeros(4000) if log_weights is None else log_weights)
    return Material(diagnostics, draws, sites, history, settings, log_weights=log_weights)


@pytest.fixture(scope="module", params=[small, stan, large, poor])
def any_report(request, tmp_path_factory):
    material = request.param(np.random.default_rng(0))
    return write_page(material, tmp_path_factory.mktemp("pages") / "page.html")


@pytest.mark.parametrize("width", [400, 768, 1200])
@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_no_table_and_no_picture_is_beyond_the_edge(browser, any_report, width, mode):
    browser.open(any_report, width=width, height=800, dark=mode == "dark", mobile=width < 500)
    if mode == "print":
        browser.send("Emulation.setEmulatedMedia", media="print")
    try:
        beyond = (
            "[...document.querySelectorAll('table, tr, td, th, figure, svg, img, pre, p, dl, input, button')]"
            ".filter(e => e.checkVisibility()).map(e => [e.getBoundingClientRect(), e])"
            f".filter(([r, e]) => r.width && !e.closest('defs') && (r.right > {width} + 0.5 || r.left < -0.5))"
            ".map(([r, e]) => e.outerHTML.slice(0, 80))"
        )
        assert browser.ask(beyond) == []
        assert browser.ask("document.documentElement.scrollWidth") <= width
        # Nothing is hidden in a box that scrolls sideways.
        hidden = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert browser.ask(hidden) == 0
        assert browser.ask("[...document.querySelectorAll('figure svg')].every(s => s.clientWidth > 100)")
        assert browser.complaints() == []
        shown = browser.ask("document.body.innerText")
        assert "Cite and repeat" in shown
        assert "Not drawn" not in shown
        if mode != "light":
            color = {"dark": "rgb(22, 23, 26)", "print": "rgb(255, 255, 255)"}[mode]
            assert browser.ask("getComputedStyle(document.body).backgroundColor") == color
    finally:
        browser.send("Emulation.setEmulatedMedia", media="")


def test_the_table_is_searched_and_sorted_by_keyboard_on_a_phone(browser, report):
    browser.open(report, width=400, mobile=True)
    browser.ask("document.getElementById('filter').focus()")
    for letter in "b[11":
        browser.send("Input.dispatchKeyEvent", type="char", text=letter)
    assert column(browser, 0)[0] == "b[11]"
    for _ in range(6):
        browser.press("Tab", 9)
        if browser.ask("document.activeElement.textContent") == "mean":
            break
    browser.press("Enter", 13)
    values = [float(text) for text in column(browser, 1)]
    assert len(values) == 11
    assert values == sorted(values)


def test_dark_pages_and_printed_ones(browser, report):
    colors = "[document.body, document.querySelector('figure svg')].map(e => getComputedStyle(e))"
    browser.open(report, dark=True)
    assert browser.ask(f"{colors}.map(s => s.backgroundColor)[0]") == "rgb(22, 23, 26)"
    assert browser.ask(f"{colors}.map(s => s.fill)[1]") == "rgb(232, 232, 234)"
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.ask(f"{colors}.map(s => s.backgroundColor)[0]") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.send("Emulation.setEmulatedMedia", media="")


def test_without_scripts_everything_is_there(browser, report):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report)
        assert len(column(browser, 0)) == 122
        assert browser.ask("getComputedStyle(document.querySelector('.controls')).display") == "none"
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


def test_what_a_notebook_shows(browser, post, tmp_path):
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><meta charset='utf-8'><title>A notebook</title>{post._repr_html_()}")
    browser.open(page)
    assert browser.complaints() == []
    assert browser.ask("document.title") == "A notebook"
    shown = browser.ask("document.body.innerText")
    assert "▲ Usable" in shown
    assert "... and 102 more rows" in shown
