"""The page of a report in a real browser: what a reader sees and can do, also with hostile names."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from selenium import webdriver
from selenium.common.exceptions import NoAlertPresentException, NoSuchElementException
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from peerdescent import figures, report
from peerdescent.methods import METHODS
from peerdescent.runs.bands import HORIZONTAL
from peerdescent.runs.metrics import Metric
from peerdescent.runs.trace import Status
from peerdescent.sweeps import tuning_grid
from run_folders import fill, save_sweep, small_sweep, trace

NASTY = "<script>alert(1)</script>"
WORSE = "</script ><!--<img src=x onerror=alert(2)>&amp;%{x}"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = fill(tmp_path_factory.mktemp("experiment"))
    report.write(folder)
    return folder


@pytest.fixture(scope="session")
def driver():
    browser, program = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("chromium and chromedriver are not installed: tests/browser/setup.sh does that")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "window-size=1200,900",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=Service(program)
    )  # given, so that Selenium does not search
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


class Page:
    """An open page: access to what is drawn, and actions of a user."""

    def __init__(self, driver, path):
        self.driver = driver
        driver.get_log("browser")
        driver.get(path.resolve().as_uri())

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        return [element.text for element in self.all(selector)]

    def lines(self):
        return [path.get_attribute("d") for path in self.all("#curves .scatterlayer path.js-line")]

    def title(self, plot, axis):
        return self.driver.execute_script(
            f"return document.querySelector('#{plot} .{axis}title').textContent"
        )

    def plot(self, name, expression):
        return self.driver.execute_script(f"return document.getElementById('{name}').{expression}")

    def choose(self, name, value):
        Select(self.all(f"#{name}")[0]).select_by_value(value)

    def complaints(self):
        return self.driver.get_log("browser")


@pytest.fixture
def page(driver, experiment):
    page = Page(driver, experiment / "report.html")
    yield page
    assert page.complaints() == []


def test_it_draws_a_line_for_each_group(page, experiment):
    assert page.driver.title == f"{experiment.name}: report"
    assert len(page.lines()) == 4
    assert all(path.count("L") >= 2 for path in page.lines())
    assert page.all("#curves svg.main-svg")[0].size["width"] > 900
    assert len(page.all("#curves .scatterlayer path.js-fill")) == 2, "a band where there are seeds"
    assert page.texts("#legend button") == [
        "d-get[alpha=9] (diverged)",
        "d2[batch=1,alpha=0.5]",
        "DSGD",
        "GT-HSGD",
    ]
    drawn = [path.get_attribute("style") for path in page.all("#curves path.js-line")]
    assert len({re.search(r"stroke: [^;]*", style)[0] for style in drawn}) == 4
    assert len({"".join(re.findall(r"stroke-dasharray: [^;]*", style)) for style in drawn}) == 4
    assert len(page.all(".drawing svg")) == 1


def test_it_is_quiet_and_asks_for_nothing(page):
    page.choose("up", "consensus")
    page.choose("heat-up", "2")
    assert page.complaints() == []
    assert (
        page.driver.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        == []
    )
    links = [e.get_attribute(name) for name in ("src", "href") for e in page.all(f"[{name}]")]
    assert [link for link in links if link and "http" in link] == []
    buttons = [button.get_attribute("data-title") for button in page.all(".modebar-btn")]
    assert buttons == ["Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out"] * 2, (
        "none that shares"
    )
    picture = (
        "Plotly.toImage('curves', {format: 'png'}).then(arguments[0], e => arguments[0](String(e)))"
    )
    assert page.driver.execute_async_script(picture).startswith("data:image/png;base64,")


def test_the_page_forbids_requests_and_other_scripts(page):
    asked = "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('asked'), e => done(String(e)))"
    assert "TypeError" in page.driver.execute_async_script(asked)
    page.driver.execute_script(
        "document.body.insertAdjacentHTML('beforeend', '<a id=trap href=# onclick=\"window.sprung = 1\">x</a>');"
        "document.getElementById('trap').click()"
    )
    assert page.driver.execute_script("return window.sprung") is None
    refused = " ".join(entry["message"] for entry in page.complaints())
    assert refused.count("Content Security Policy") >= 2


def test_the_vertical_axis_becomes_linear_and_logarithmic(page):
    assert (page.plot("curves", "_fullLayout.yaxis.type"), page.title("curves", "y")) == (
        "log",
        "gap F(x̄) − F*",
    )
    before = page.lines()
    page.all("#scale")[0].click()
    assert page.plot("curves", "_fullLayout.yaxis.type") == "linear"
    assert page.all("#scale")[0].get_attribute("aria-pressed") == "false"
    assert page.lines() != before
    page.choose("up", "loss")
    assert (page.plot("curves", "_fullLayout.yaxis.type"), page.title("curves", "y")) == (
        "linear",
        "loss F(x̄)",
    )
    page.choose("up", "gap")
    assert page.plot("curves", "_fullLayout.yaxis.type") == "linear", "each quantity remembers"
    page.all("#scale")[0].send_keys(" ")
    assert page.plot("curves", "_fullLayout.yaxis.type") == "log"


def test_the_vertical_quantity(page):
    page.choose("up", "grad_norm")
    assert page.title("curves", "y").startswith("gradient norm")
    values = page.plot("curves", "data.find(t => t.mode === 'lines' && t.name.startsWith('d2')).y")
    np.testing.assert_allclose(values, trace().table["loss"] ** 2, rtol=1e-6)


def test_an_axis_without_values_is_not_offered(page):
    """None of these runs has a clock; `test_clock` has some that do."""
    with pytest.raises(NoSuchElementException, match="clock"):
        page.choose("across", "clock")


@pytest.mark.parametrize("axis", [axis for axis in HORIZONTAL if axis != "clock"])
def test_the_horizontal_axis(page, axis):
    page.choose("across", axis)
    assert page.title("curves", "x") == HORIZONTAL[axis].title
    assert (
        page.plot("curves", "data.find(t => t.mode === 'lines' && t.name.startsWith('d2')).x")
        == trace().table[axis].tolist()
    )
    assert len(page.lines()) == 4
    ticks = page.texts("#curves .xaxislayer-above .xtick")
    assert any("MB" in tick for tick in ticks) == (axis == "bytes")


def test_a_line_is_hidden_and_shown_by_its_name(page):
    name = page.all("#legend button")[3]
    name.click()
    assert len(page.lines()) == 3
    assert len(page.all("#curves .scatterlayer path.js-fill")) == 1
    assert name.get_attribute("aria-pressed") == "false"
    assert not page.plot("curves", "data.some(t => t.name === 'GT-HSGD')")
    name.send_keys("\n")
    assert len(page.lines()) == 4


def test_a_zoom_stays_until_it_is_undone(page):
    def view():
        return page.plot("curves", "_fullLayout.xaxis.range") + page.plot(
            "curves", "_fullLayout.yaxis.range"
        )

    def zoom():
        page.driver.execute_script("document.getElementById('curves').scrollIntoView()")
        hand = ActionChains(page.driver).move_to_element_with_offset(
            page.all("#curves .nsewdrag")[0], -200, -50
        )
        hand.click_and_hold().move_by_offset(300, 120).release().perform()

    page.choose("across", "rounds")
    before = view()
    zoom()
    zoomed = view()
    assert before[0] < zoomed[0] < zoomed[1] < before[1]
    assert before[2] < zoomed[2] < zoomed[3] < before[3]
    page.all("#legend button")[2].click()
    assert view() == zoomed, "also when a line goes"
    page.all("#whole")[0].click()
    assert view() == before
    zoom()
    assert view() != before
    ActionChains(page.driver).double_click(page.all("#curves .nsewdrag")[0]).perform()
    WebDriverWait(page.driver, 10).until(lambda _: view() == before)


@pytest.mark.parametrize("log", [False, True])
def test_what_diverged_is_shown_and_does_not_set_the_scale(page, log):
    page.choose("up", "loss")
    if log:
        page.all("#scale")[0].click()
    low, high = page.plot("curves", "_fullLayout.yaxis.range")
    assert -1 < low < high < 2, "the others lie between 0.3 and 1.7, and 50 is far out"
    (cross,) = page.all("#curves .scatterlayer .points path")
    box, area = cross.rect, page.all("#curves .nsewdrag")[0].rect
    assert area["y"] - 10 <= box["y"] <= area["y"] + 10, "at the upper edge"
    for button in page.all("#legend button")[1:]:
        button.click()
    assert page.plot("curves", "_fullLayout.yaxis.range[1]") > (5 if log else 50), "alone it does"


def test_the_heat_map(page):
    assert len(page.all("#heat .heatmaplayer image")) == 2, "losses, and what diverged"
    assert (page.title("heat", "x"), page.title("heat", "y")) == ("alpha", "beta"), "as in figures"
    assert np.shape(page.plot("heat", "data[0].z")) == (3, 4)
    assert [row[3] for row in page.plot("heat", "data[1].z")] == [0, 0, 0]
    assert (page.plot("heat", "data[2].x"), page.plot("heat", "data[2].y")) == (["0.5"], ["0.1"]), (
        "the star"
    )
    page.choose("heat-up", "2")
    assert page.title("heat", "y") == "batch"
    assert np.shape(page.plot("heat", "data[0].z")) == (2, 4)
    assert page.plot("heat", "data[0].z[1][1]") == pytest.approx(
        0.4 + np.log(0.5) ** 2 / 100 + 1 / 25
    )
    page.choose("heat-across", "2")
    assert (page.title("heat", "x"), page.title("heat", "y")) == ("batch", "alpha"), "swapped"
    page.choose("heat-up", "1")
    missing = page.plot("heat", "data[0].z[2][1]"), page.plot("heat", "data[1].z[2][1]")
    assert missing == (None, None), "never run"


def test_a_heat_map_has_the_colours_and_the_scale_of_the_figure(page):
    table = small_sweep()
    mesh = figures.heatmap(table, "alpha", "beta").axes[0].collections[0]
    assert (page.plot("heat", "data[0].zmin"), page.plot("heat", "data[0].zmax")) == pytest.approx(
        mesh.get_clim()
    )
    np.testing.assert_allclose(
        mesh.get_array().filled(np.nan), np.array(page.plot("heat", "data[0].z"), float)
    )
    reverse = "_r" * page.plot("heat", "data[0].reversescale")
    assert page.plot("heat", "data[0].colorscale").lower() + reverse == mesh.cmap.name


@pytest.mark.parametrize(("width", "media"), [(1200, "screen"), (400, "screen"), (718, "print")])
def test_it_fits(page, width, media):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
    try:
        page.driver.refresh()
        root = "document.documentElement"
        wide, room = page.driver.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
        assert wide <= room <= width
        assert 0.8 * room < page.all("#curves svg.main-svg")[0].size["width"] <= room
        assert page.all("#up")[0].is_displayed() == (media == "screen")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_plots_follow_their_place(page):
    """They once followed the window alone, and stood out of a frame that became narrower."""
    page.driver.execute_script("document.querySelector('main').style.width = '420px'")
    WebDriverWait(page.driver, 10).until(
        lambda _: page.all("#curves svg.main-svg")[0].size["width"] < 420
    )
    assert page.all("#heat svg.main-svg")[0].size["width"] < 420


def test_it_prints_and_recovers(page):
    assert len(page.driver.print_page()) > 10_000
    assert page.all("#curves svg.main-svg")[0].size["width"] > 900, "as wide as before"


def test_names_are_only_names(driver, tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(3)>&lt;"
    trace(NASTY, message=NASTY, status=Status.diverged, problem=NASTY, losses=[1, 2]).save(
        folder / "a"
    )
    trace(WORSE, problem=NASTY).save(folder / "b")
    trace(NASTY, problem=WORSE).save(folder / "c")
    table = small_sweep().rename(columns={"alpha": NASTY, "beta": WORSE})
    save_sweep(
        folder / "<b>s",
        table[table["batch"] == 1].assign(batch=WORSE),
        NASTY,
        problem=NASTY,
        budget=NASTY,
    )
    (folder / "config.toml").write_text(f"topology = '{NASTY}'\nnodes = 6\n'<b>' = ['{WORSE}']\n")
    page = Page(driver, report.write(folder))
    with pytest.raises(NoAlertPresentException):
        _ = driver.switch_to.alert
    assert driver.title == "<img src=x onerror=alert(3)>&lt;: report"
    assert len(page.all("script")) == 3
    assert page.all("img") + page.all("main b") == []
    assert page.texts("#legend button") == [f"{NASTY} (problem {NASTY}) (diverged)", WORSE]
    assert page.texts("#problem option") == [NASTY, WORSE]
    assert page.texts("#heat-up option") == [NASTY, WORSE]
    assert (page.title("heat", "x"), page.title("heat", "y")) == (NASTY, WORSE)
    driver.execute_script("Plotly.Fx.hover('curves', [{curveNumber: 1, pointNumber: 3}])")
    assert WORSE in page.plot("curves", "querySelector('.hovertext').textContent")
    assert page.complaints() == []


def test_a_metric_of_the_user(driver, tmp_path):
    accuracy = np.r_[0.1, np.linspace(0.05, 0.9, 20)]
    found = trace()
    found = dataclasses.replace(found, table=found.table.assign(accuracy=accuracy, cost=accuracy))
    dataclasses.replace(found, metrics=(Metric("cost", title="cost <i>", log=True),)).save(tmp_path)
    page = Page(driver, report.write(tmp_path))
    page.choose("up", "accuracy")
    assert (page.plot("curves", "_fullLayout.yaxis.type"), page.title("curves", "y")) == (
        "linear",
        "accuracy",
    )
    np.testing.assert_allclose(page.plot("curves", "data[0].y"), accuracy, rtol=1e-6)
    low, high = page.plot("curves", "_fullLayout.yaxis.range")
    assert low < 0.05
    assert high > 0.9, "it may climb"
    page.choose("up", "cost")
    assert (page.plot("curves", "_fullLayout.yaxis.type"), page.title("curves", "y")) == (
        "log",
        "cost <i>",
    )
    assert page.complaints() == []


@pytest.mark.long
def test_many_seeds_on_the_paper_grid_open(driver, tmp_path):
    for index, name in enumerate(METHODS):
        trace(name, losses=np.linspace(1, 0.5 + index / 20, 300)).save(tmp_path / name)
    table = pd.DataFrame(tuning_grid("d-get", 2442))
    save_sweep(
        tmp_path / "s",
        table.assign(seed=0, loss=np.linspace(0.3, 3, len(table)), status="done"),
        "d-get",
    )
    page = Page(driver, report.write(tmp_path))
    assert len(page.lines()) == len(METHODS)
    for across, up in itertools.permutations("0123", 2):
        page.choose("heat-across", across)
        page.choose("heat-up", up)
        rows, columns = np.shape(page.plot("heat", "data[0].z"))
        assert rows == len(page.plot("heat", "data[0].y"))
        assert columns == len(page.plot("heat", "data[0].x"))
    assert page.complaints() == []
