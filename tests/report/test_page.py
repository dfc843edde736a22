"""The page as a file: hostile names stay text, and only its own scripts may run. No browser is needed."""

import base64
import hashlib
import html
import re

import numpy as np
import pytest

from peerdescent import report
from peerdescent.report import page
from peerdescent.runs.trace import Status
from run_folders import contents, fill, save_sweep, small_sweep, trace, words

NASTY = "<script>alert(1)</script>"
WORSE = "</script ><!--<img src=x onerror=alert(2)>&amp;%{x}\"'"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return report.write(fill(tmp_path_factory.mktemp("experiment"))).read_text(encoding="utf-8")


def scripts(text):
    return re.findall(r"<script>(.*?)</script>", text, flags=re.S)


def test_scripts_are_allowed_by_their_digests_alone(text):
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy).split(";"))
    assert rules.pop("script-src").split() == [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts(text)
    ]
    assert len(scripts(text)) == 2
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert text.index("Content-Security-Policy") < text.index("<title>"), (
        "before anything it has to rule"
    )


def test_it_asks_for_nothing(text):
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.findall(r"\b(?:src|href)\s*=\s*[\"']?(?!#)[^\"'\s>]*//", own)
    assert "@import" not in own


def test_names_are_only_names(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(3)>&lt;"
    trace(NASTY, message=NASTY, status=Status.diverged, problem=NASTY, losses=[1, 2]).save(
        folder / "a"
    )
    bad = trace(WORSE, problem=WORSE)
    bad.table[NASTY] = 1.0
    bad.save(folder / "b")
    table = small_sweep().rename(columns={"alpha": NASTY, "beta": WORSE})
    save_sweep(
        folder / "<b>s",
        table[table["batch"] == 1].assign(batch=WORSE),
        NASTY,
        problem=WORSE,
        budget=NASTY,
    )
    (folder / "config.toml").write_text(f"topology = \"{NASTY}\"\nnodes = 6\n'<b>' = ['{NASTY}']\n")
    path = report.write(folder)
    text = path.read_text(encoding="utf-8")
    tags = re.findall(
        r"<[!/]?\w[^\s>]*", re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S)
    )
    assert not {"<script", "<img", "<b", "<!--"} & set(tags)
    assert text.count("<script") - "".join(scripts(text)).count("<script") == 3
    assert words(path).count(NASTY) >= 8
    assert WORSE in words(path)
    data = contents(path)
    assert {group["label"] for group in data["groups"]} == {NASTY, WORSE}
    assert data["quantities"][NASTY]["title"] == NASTY
    assert [parameter["name"] for parameter in data["sweeps"][0]["parameters"]] == [NASTY, WORSE]


def test_what_is_missing_is_an_error_and_not_empty():
    with pytest.raises(Exception, match="'title' is undefined"):
        page.render({}, {})


def test_nan_is_refused():
    nothing = dict.fromkeys(("title", "lead", "version"), "") | dict.fromkeys(
        ("curves", "sweeps", "citations", "made")
    )
    with pytest.raises(ValueError, match="Out of range float values"):
        page.render(nothing | {"setting": {"missing": "nothing"}}, {"a": np.nan})
