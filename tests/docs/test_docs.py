"""The documentation: its code runs, its lists are complete, and its links exist.

A ```python block is executed, or run as a doctest if it has prompts. The blocks of a file share one namespace. A block
is skipped only after a line `<!-- skip: reason -->`.
"""

from __future__ import annotations

import doctest
import inspect
import json
import re
import runpy
import shlex
import tomllib
import zlib
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
import typer

import children
import peerdescent as peer
from conftest import PROFILE
from peerdescent import experiment as config
from peerdescent.cli import main as cli
from peerdescent.datasets.partitions import PARTITIONS
from peerdescent.engines import ENGINES
from peerdescent.runs.metrics import METRICS
from small import alike

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LONG_RUNS = [
    "README.md",
    "docs/comparisons.md",
    "docs/gallery.md",
    "docs/quickstart.md",
    "docs/seeds.md",
    "docs/sweeps.md",
]
"""Pages whose programs run longer than they are compiled: they are fully optimised. Those of the others are not."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(
    r"(?:<!-- skip: (?P<reason>.+?) -->\n+)?^```(?P<kind>\S+)\n(?P<text>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")


ALIKE = doctest.register_optionflag("ALIKE")


class Block(NamedTuple):
    kind: str
    text: str
    line: int


def blocks(page: Path, kind: str) -> list[Block]:
    text = page.read_text()
    return [
        Block(kind, found["text"], text.count("\n", 0, found.start("text")) + 1)
        for found in FENCE.finditer(text)
        if found["kind"] == kind and not found["reason"]
    ]


def commands(page: Path) -> list[str]:
    return [
        line
        for block in blocks(page, "sh")
        for line in block.text.splitlines()
        if line.startswith("peerdescent ")
    ]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder to write to, no data of the user's, and registries that are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PEERDESCENT_DATA", raising=False)
    registries = peer.estimators.ESTIMATORS, peer.fusions.FUSIONS, peer.methods.METHODS
    kept = [dict(registry) for registry in registries]
    yield tmp_path
    for registry, before in zip(registries, kept, strict=True):
        registry.clear()
        registry.update(before)


@pytest.fixture
def quickly():
    """Programs are compiled without optimisations, which takes a quarter of the time; not in profile `random`."""
    jax.config.update("jax_disable_most_optimizations", PROFILE == "fixed")
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Checker(doctest.OutputChecker):
    """With `# doctest: +ALIKE` the last digits of numbers may differ, as they do between processors."""

    def check_output(self, want, got, flags):
        return super().check_output(want, got, flags) or bool(
            flags & ALIKE and alike(want, got, rtol=0.1)
        )


def run(page: Path) -> None:
    """Run the Python blocks of a page, here. `make gallery` does so for its figures."""
    names = {"__name__": page.stem}
    for block in blocks(page, "python"):
        if ">>> " in block.text:
            test = doctest.DocTestParser().get_doctest(
                block.text, names, named(page), str(page), block.line
            )
            test.globs = names  # the parser made a copy, and later blocks use what this one defines
            told: list[str] = []
            doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS).run(
                test, out=told.append, clear_globs=False
            )
            assert not told, "".join(told)
        else:
            exec(
                compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True), names
            )


@pytest.mark.parametrize("page", [ROOT / name for name in LONG_RUNS], ids=named)
def test_python_blocks_with_long_runs(page, elsewhere):
    run(page)


def test_shell_lines_of_the_readme_run(elsewhere, capsys):
    """In this process, where programs are compiled already; what a pipe does with the output is left to a shell."""
    lines = commands(ROOT / "README.md")
    assert len(lines) >= 6
    for line in lines:
        words, _, rest = re.fullmatch(r"peerdescent (.+?)( (?=[|>] )(.*))?", line).groups()
        with pytest.raises(SystemExit) as left:
            cli.main(shlex.split(words))
        shown = capsys.readouterr()
        assert left.value.code == 0, f"{line}\n{shown.out}\n{shown.err}"
        if rest:
            (elsewhere / "shown").write_text(shown.out)
            ran = children.run(["bash", "-o", "pipefail", "-c", f"cat shown {rest}"])
            assert ran.returncode == 0, ran.stderr
    losses = (elsewhere / "loss.csv").read_text().splitlines()
    assert losses[0] == "epoch,loss"
    assert float(losses[-1].split(",")[1]) < float(losses[1].split(",")[1])
    assert peer.Trace.load("runs/a").table["epoch"].iloc[-1] > 19, "--resume did not go on"
    for file in ("exponential.png", "runs/b/config.toml", "runs/c/comparison.png"):
        assert (elsewhere / file).stat().st_size > 0


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and named(page) not in LONG_RUNS],
    ids=named,
)
def test_python_blocks_run(page, elsewhere, quickly):
    run(page)


def test_pictures_of_the_gallery_are_those_that_its_code_makes():
    text = (ROOT / "docs/gallery.md").read_text()
    stored = {file.name for file in (ROOT / "docs/gallery").iterdir()}
    assert (
        stored
        == set(re.findall(r'"gallery/(\S+)"\)', text))
        == set(re.findall(r"!\[[^]]+\]\(gallery/(\S+)\)", text))
    )


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=named)
def test_command_lines_are_understood(page, elsewhere):
    """The flags, choices and methods of every command line are valid; the commands are not run."""
    group = typer.main.get_command(cli.app)
    for line in commands(page):
        words = shlex.split(re.split(r" [|>] ", line)[0])[1:]
        command = group.commands[words[0]]
        parameters = command.make_context(words[0], words[1:]).params
        if words[0] in ("run", "compare"):
            config.settle(
                {},
                {
                    name: parameters[name]
                    for name in config.KINDS
                    if parameters.get(name) is not None
                },
            )
        for selector in parameters.get("methods") or [parameters.get("method")]:
            assert selector in (None, "all") or peer.methods.parse(selector)
        if parameters.get("topology"):
            peer.topology.build(parameters["topology"], int(parameters["nodes"] or 20))
    for block in blocks(page, "toml"):
        (elsewhere / "shown.toml").write_text(block.text)
        values = config.read("shown.toml", "methods")
        assert all(peer.methods.parse(selector) for selector in values.pop("methods"))
        config.settle(values, {})


def test_the_picture_can_be_made_again():
    values = config.read(ROOT / "examples/demo.toml", "methods")
    names = [peer.methods.parse(selector).name for selector in values.pop("methods")]
    assert config.settle(values, {}).data == "digits"
    assert names == ["gt-hsgd", "gt-dsgd", "d-get", "d-spider-sfo"]


LATE = "equinox_mlp", "flax_mlp"
"""Examples for `make test-long`: mlp.py with models of those libraries. docs/problems.md trains such models, too."""


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, marks=[pytest.mark.long] * (e.stem in LATE)) for e in EXAMPLES],
    ids=named,
)
def test_examples_run(example, elsewhere, capsys):
    runpy.run_path(str(example), run_name="__main__")
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) >= 4
    assert len(re.findall(r"\d\.\d", shown)) >= 6
    assert not re.search(r"\b(nan|inf)\b", shown)


def whole(page: Path) -> str:
    """The text of a page, with the files that it includes."""
    return re.sub(
        r"^```\{include\} (\S+)$",
        lambda m: (page.parent / m[1]).read_text(),
        page.read_text(),
        flags=re.M,
    )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    for found in LINK.finditer(prose(page)):
        target, _, anchor = found["target"].partition("#")
        if target.startswith("https://"):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{named(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", whole(file), re.M)
            slugs = [
                re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
                for heading in headings
            ]
            assert anchor in slugs, f"{named(page)} links to {target}#{anchor}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation, built with warnings as errors."""
    out = tmp_path_factory.mktemp("site")
    command = [
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        out / "cache",
        "docs",
        out,
    ]
    ran = children.python(*command, limit=200, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return out


def test_the_zoo_is_built_with_a_section_for_every_method(site):
    shown = (site / "zoo.html").read_text()
    assert all(f'<section id="{name}">' in shown for name in peer.methods.METHODS)
    assert all(f'href="#{name}"' in shown for name in peer.methods.METHODS)
    assert "<sub>t+1</sub>" in shown
    assert "{sub}" not in shown
    assert "{zoo}" not in shown


def test_the_site_needs_nothing_from_elsewhere(site):
    for page in site.glob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="([^"]+)"', page.read_text()
        )
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page.name
    assert "<math" in (site / "methods.html").read_text()


def test_the_search_finds_methods_and_headings(site):
    """What the script of the search looks up: words without endings, as numbers of pages, and titles."""
    found = json.loads(
        (site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")")
    )

    def pages(word):
        numbers = [found[kind].get(word, []) for kind in ("terms", "titleterms")]
        flat = [
            number for each in numbers for number in ([each] if isinstance(each, int) else each)
        ]
        return {found["docnames"][number] for number in flat}

    assert {"zoo", "methods", "quickstart"} <= pages("gt") & pages("hsgd")
    assert {"faults", "coming-from"} <= pages("drop")
    assert "gt-hsgd" in found["alltitles"]
    assert "<no title>" not in found["titles"]
    assert 'action="search.html"' in (site / "index.html").read_text()


def test_the_landing_page_leads_to_every_page(site):
    """One click from it, by the list at the left, which every page has."""
    shown = (site / "index.html").read_text()
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert not [page for page in pages if f'href="{page}.html"' not in shown]


def test_public_names_are_in_the_reference(site):
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = {f"peerdescent.{name}" for name in peer.__all__}
    public |= {
        f"peerdescent.methods.{entry.build.__name__}" for entry in peer.methods.METHODS.values()
    }
    public |= {
        f"peerdescent.methods.estimators.{kind.__name__}"
        for kind in peer.estimators.ESTIMATORS.values()
    }
    public |= {
        f"peerdescent.methods.fusions.{kind.__name__}" for kind in peer.fusions.FUSIONS.values()
    }
    public |= {
        f"peerdescent.networks.topology.{function.__name__}"
        for function in peer.topology.TOPOLOGIES.values()
    }
    public |= {
        f"peerdescent.networks.faults.{kind.__name__}" for kind in peer.faults.FAULTS.values()
    }
    public |= {f"peerdescent.problems.{name}" for name in peer.problems.__all__}
    public |= {f"peerdescent.datasets.{name}" for name in peer.datasets.__all__}
    assert public <= known, public - known


def rows(page: str) -> dict[str, str]:
    """The rows of all tables of a page, by the first `code` in their first cell; the first row of a name."""
    text = (ROOT / page).read_text()
    found = [
        (re.findall(r"`([^`]+)`", row.split("|")[1])[:1], row)
        for row in re.findall(r"^\|.+\|$", text, re.M)
    ]
    return {name: row for names, row in reversed(found) for name in names}


def test_the_signature_of_run_is_right():
    """It is written out, since the tool would show those for one seed and for several, without the defaults."""
    (shown,) = re.findall(r"autofunction:: run(\(.*\))", (ROOT / "docs" / "api.md").read_text())
    parameters = inspect.signature(peer.run).parameters.values()
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    assert shown == str(inspect.Signature(bare))


def test_the_table_of_methods_is_right():
    table = rows("README.md")
    for name, entry in peer.methods.METHODS.items():
        row = table[name].replace("_", "-")
        estimator, fusion = entry.build().parts
        assert re.search(
            rf"{type(estimator).__name__}\b.*×.*{type(fusion).__name__.replace('_', '-')}", row
        ), name
        assert ("symmetric" in row) == fusion.needs.symmetric, name
        assert ("1/3" in row) == (fusion.needs.smallest_eigenvalue > -1), name


VERBS = {name for name in vars(peer.methods.Net) if not name.startswith("_")}


def test_lists_are_complete():
    for page, names in {
        "docs/networks.md": [*peer.topology.TOPOLOGIES, "lazy", "metropolis", "equal", "push-pull"],
        "docs/data.md": [*peer.datasets.SETS, *(f'"{name}"' for name in PARTITIONS)],
        "docs/design.md": [*ENGINES, *(f"net.{verb}" for verb in VERBS)],
    }.items():
        first = [name.partition("(")[0] for name in rows(page)]
        assert set(names) <= set(first), set(names) - set(first)
    shown = (ROOT / "docs/methods.md").read_text()
    assert not [column for column in METRICS if f"`{column}`" not in shown]


def test_the_examples_are_counted():
    words = {5: "five", 6: "six", 7: "seven", 8: "eight"}
    scripts, notebooks = (
        words[len(list(ROOT.glob(f"examples/{kind}")))] for kind in ("*.py", "notebooks/*.ipynb")
    )
    assert (
        f"{scripts.capitalize()} scripts and {notebooks} [notebooks]"
        in (ROOT / "README.md").read_text()
    )


def test_the_table_of_data_is_right():
    for name, each in peer.datasets.SETS.items():
        row = rows("docs/data.md")[name]
        assert f"{each.shape[0]:,} × {each.shape[1]}" in row
        assert each.openml is None or f"OpenML {each.openml} " in row
        assert all(file in row for file in each.files) or "four IDX files" in row
        assert ("| yes |" in row) == each.scale


def test_the_table_of_flags_is_right():
    table = rows("docs/command-line.md")
    for field in config.fields(config.Options):
        row = table.pop("--" + field.name.replace("_", "-"))
        assert f"| {field.metadata['shown']} |".replace("|  |", "| |") in row, field.name
        assert all(
            f"`{choice}`" in row or isinstance(choice, int) for choice in field.metadata["choices"]
        ), field.name
    assert {flag for flag in table if flag.startswith("--")} == {"--config", "--resume"}


def test_every_dependency_has_a_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"], *project["optional-dependencies"].values()
    packages = {re.match(r"[\w-]+", each)[0] for group in wanted for each in group}
    listed = set(re.findall(r"^\| ([\w-]+) \|", (ROOT / "docs/dependencies.md").read_text(), re.M))
    assert listed - {"package"} == packages


def test_versions_and_targets_exist():
    readme, changes = (ROOT / "README.md").read_text(), (ROOT / "CHANGELOG.md").read_text()
    assert f"Version {peer.__version__} " in readme
    assert re.search(
        rf"^## \[{re.escape(peer.__version__)}\] - \d{{4}}-\d\d-\d\d$", changes, re.M
    ) or (f"\n## [Unreleased]\n\nThis will be {peer.__version__}," in changes)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for page in PAGES:
        asked = re.findall(r"(?:^|`)make (\w+)", page.read_text(), re.M)
        assert set(asked) <= set(targets), named(page)
