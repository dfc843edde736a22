"""Rules on the source as a whole that no linter knows. The order of layers is a contract of import-linter."""

import ast
import importlib
import pkgutil
import re

import pytest

import peerdescent
from children import SOURCE
from peerdescent.engines.registry import ENGINES
from peerdescent.methods.estimators import ESTIMATORS
from peerdescent.methods.fusions import FUSIONS
from peerdescent.methods.parameters import declared

PACKAGES = [
    "peerdescent",
    *(m.name for m in pkgutil.walk_packages(peerdescent.__path__, "peerdescent.") if m.ispkg),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_has_the_name_of_a_function_or_class_beside_it(name):
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    exported = {
        each for each in getattr(package, "__all__", ()) if callable(getattr(package, each))
    }
    assert not modules & exported


def test_packages_export_functions():
    assert {"run", "metric"} <= set(importlib.import_module("peerdescent.runs").__all__)


def mentions(tree: ast.AST) -> set[str]:
    """The texts of a module that are a name of an engine, and the modules of engines that it imports."""
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in list(ENGINES)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if node.module == "peerdescent.engines"
            }
            found |= {node.module} if node.module.startswith("peerdescent.engines.") else set()
    modules = {entry.module for entry in ENGINES.values()}
    return {each for each in found if each in ENGINES or each.rpartition(".")[2] in modules}


@pytest.mark.parametrize(
    "place",
    [path for room in ("runs", "cli") for path in SOURCE.glob(f"peerdescent/{room}/*.py")],
    ids=lambda p: p.stem,
)
def test_neither_runs_nor_the_command_line_know_an_engine_by_name(place):
    assert not mentions(ast.parse(place.read_text()))


def test_mentions_are_seen():
    tree = ast.parse(
        'from peerdescent.engines.stacked import Stacked\nx = "debug"\n"a debug engine"'
    )
    assert mentions(tree) == {"peerdescent.engines.stacked", "debug"}


HYPERPARAMETERS = {
    name for part in (*ESTIMATORS.values(), *FUSIONS.values()) for name in declared(part)
}
VERBS = {"batch", "period", "probability", "compressor", "epsilon"}
"""Names that are also arguments of verbs, kinds of hyperparameters, or the accuracy in theory."""
ABOUT_ONE_METHOD = ("theory", "cli/theory.py")
"""Theorem 1 and Corollary 1 are about the numbers of GT-HSGD."""


def hyperparameters(tree: ast.AST) -> set[str]:
    """The hyperparameters that a module refers to: as text, keyword or attribute, or inside a selector."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            selector = re.fullmatch(r"[\w*-]+\[(.*)\]", node.value)
            found |= {node.value} | set(re.findall(r"(\w+)=", selector[1] if selector else ""))
        elif isinstance(node, ast.keyword | ast.arg):
            found.add(str(node.arg))
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found & (HYPERPARAMETERS - VERBS)


@pytest.mark.parametrize("place", sorted(SOURCE.glob("peerdescent/**/*.py")), ids=lambda p: p.stem)
def test_only_parts_and_named_methods_know_a_hyperparameter_by_name(place):
    name = place.relative_to(SOURCE / "peerdescent").as_posix()
    if name.startswith(ABOUT_ONE_METHOD) or name in {
        f"methods/{own}.py" for own in ("estimators", "fusions", "named")
    }:
        return
    # The opacity of matplotlib, and the factor of PyTorch's additions.
    others = {"alpha"} if name.startswith("figures/") or name == "engines/vectors.py" else set()
    assert not hyperparameters(ast.parse(place.read_text())) - others


def test_hyperparameters_are_seen():
    tree = ast.parse(
        "f(beta=1); x.kappa; y['eta']; parse('gt-hsgd[batch=1,initial_batch=3]'); batch(1)"
    )
    assert hyperparameters(tree) == {"beta", "kappa", "eta", "initial_batch"}
