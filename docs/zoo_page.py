"""The generated parts of the page of the zoo, as Markdown, from what is registered when the documentation is built.

`expanded` replaces each fenced block `{zoo} name` of docs/zoo.md by the text of the function of that name in `PARTS`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import peerdescent as peer
from peerdescent.compressors import COMPRESSORS, Compressor
from peerdescent.engines.outline import outline
from peerdescent.methods import Entry, Method, Needs, by_purpose, compose
from peerdescent.methods.parameters import Parameter, declared
from peerdescent.runs.costs import Costs
from peerdescent.runs.formulas import SAMPLES as LOCAL
from peerdescent.runs.formulas import Formula, Formulas, formulas

FIGURES = Path(__file__).parent / "zoo"
"""What `peerdescent reproduce zoo` has written: zoo.csv, and a figure for each method."""
SAMPLES, ENTRIES, ITEM = 2442, 123, 4
"""The samples of a node, the parameters, and the bytes of a number, for costs as numbers: a9a over 20 nodes."""
AVERAGED = 10**6
"""Over how many iterations costs are averaged."""

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η", "theta": "θ", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "rho": "ρ", "sigma": "σ", "tau": "τ", "chi": "χ",
}  # fmt: skip
SIGNS = {"sqrt": "√", "'": "′", "-": "−", "||": "‖", ">=": "≥", "<=": "≤"}
PIECES = {
    "code": r"`[^`]*`",
    "name": r"\b[a-z]{2,}(?:_[a-z]{2,})+\b",  # a hyperparameter without quotes
    "greek": rf"\b(?:{'|'.join(GREEK)})\d?(?![a-z])",
    "sub": r"(?<=[A-Za-z])_(?:\{[^}]*\}|\w(?!\w))",
    "sup": r"\^(?:\{[^}]*\}|\([^)]*\)|\w+)",
    "sign": r"\bsqrt(?=\()|(?<=\b[a-z])'(?!\w)|(?<= )-(?= )|(?<=[ (])-(?=[\w(])|\|\||>=|<=",
    "mark": r"[\\*<>\[\]|]",  # which Markdown would read as its own
}
"""What is printed otherwise than docstrings have it."""
WHO = r"[A-Z][\w-]+(?:(?:, | and )[A-Z][\w-]+)*(?: et al\.)? \d{4}"
CITED = re.compile(rf"(?:^|(?<=\. )){WHO}(?:; {WHO})*\.$")
"""A sentence of names and years only, at the end of a text."""
PIECE = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in PIECES.items()))


def typeset(text: str) -> str:
    """A docstring's plain text as Markdown: Greek letters, subscripts and powers; `code` stays as it is.

    >>> typeset("y_{t+1} = W(y_t - alpha beta1^2 v), with `atc`, for large_batch")
    'y{sub}`t+1` = W(y{sub}`t` − α β{sub}`1`{sup}`2` v), with `atc`, for `large_batch`'
    """
    return PIECE.sub(_printed, text)


def _printed(found: re.Match[str]) -> str:
    kind, text = found.lastgroup, found[0]
    if kind == "greek":
        letter = text.rstrip("0123456789")
        return GREEK[letter] + (f"{{sub}}`{text[len(letter) :]}`" if text != letter else "")
    if kind in ("sub", "sup"):
        return f"{{{kind}}}`{text[1:].strip('{}()').replace('-', '−')}`"
    return {"code": text, "name": _code(text), "sign": SIGNS.get(text, ""), "mark": f"\\{text}"}[
        str(kind)
    ]


def _documented(thing: Any) -> tuple[str, str]:
    """The first line of a docstring, and the text after it without arguments and examples."""
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n")
    rest = re.split(r"^(?:Args:|Returns:|>>>)", rest, maxsplit=1, flags=re.M)[0]
    return first.strip(), " ".join(rest.split())


def _code(text: object) -> str:
    return f"`{text}`"


def _symbol(name: str) -> str:
    """The symbol of a formula: the name of a hyperparameter, or the samples of a node."""
    return f"*{name}*" if name == LOCAL else _code(name)


def _plural(number: float, unit: str) -> str:
    return f"{number:,.4g} {unit}{'s' if number != 1 else ''}"


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(filter(None, texts))


# What a method needs and costs


def needs_of(needs: Needs) -> str:
    """What a fusion needs of W, in words."""
    facts = [
        "doubly stochastic"
        if needs.doubly_stochastic
        else "push-pull weights of any strongly connected graph will do",
        "symmetric" if needs.symmetric else "",
        f"eigenvalues above {_fraction(needs.smallest_eigenvalue)}"
        if needs.smallest_eigenvalue > -1
        else "",
        "the same at every step" if needs.static else "",
    ]
    return ", ".join(filter(None, facts))


def _fraction(value: float) -> str:
    third = round(3 * value)
    return (
        f"{third}/3".replace("-", "−")
        if abs(3 * value - third) < 1e-9
        else f"{value:g}".replace("-", "−")
    )


def _besides(method: Method, open_names: Iterable[str]) -> str:
    """What a method needs besides W."""
    does = outline(method)
    unset = [name for name in open_names if method.parameters.get(name, "") is None]
    unless = f", unless {' and '.join(map(_code, unset))} is given" if unset else ""
    return _listed(
        [
            f"exact local gradients, which streams of samples do not have{unless}"
            if does.takes_exact
            else "",
            "one round a mix" if does.compresses else "",
            "made for problems with a non-smooth term" if "prox" in does.verbs else "",
        ]
    )


def average(method: Method, samples: float = SAMPLES) -> tuple[float, float, float]:
    """The gradients, rounds and bytes to each neighbour of an iteration, on average, from the ledger."""
    costs = Costs(method, samples, [1.0], message=lambda message: message.size(ENTRIES, ITEM))
    ends = np.array([1, 1 + AVERAGED])
    first, second, third = (
        float(np.diff(spent(ends))[0]) / AVERAGED
        for spent in (costs.gradients, costs.rounds, costs.sent)
    )
    return first, second, third


def _iteration(first: Formula, later: Formula, unit: str) -> str:
    """The cost of an iteration in words, with that of iteration 0 if it differs."""
    words, start = later.text(_symbol), first.text(_symbol)
    shown = re.sub("(?= every | with )" if later.branches else "$", f" {unit}", words)
    shown = re.sub(rf"(?<!\S)1 {unit}", f"1 {unit.removesuffix('s')}", shown)
    if later.branches:
        shown += f" ({later.expected(_symbol)} on average)".replace(" - ", " − ")
    return shown if start == words else f"{shown}, {start} in iteration 0"


def costs_of(entry: Entry) -> str:
    """The costs of an iteration in symbols: its gradients and its rounds."""
    method, found = entry.build(), _formulas(entry)
    gradients = _iteration(found.first_gradients, found.gradients, "gradients")
    rounds = _iteration(found.first_rounds, found.rounds, "rounds")
    squeezed = "".join(f", messages compressed by {_code(one)}" for one in found.compressors)
    unset = [
        name
        for name in entry.parameters
        if name in method.sizes and method.parameters[name] is None
    ]
    counted = "".join(f"; {_code(name)} counts as *{LOCAL}* if it is none" for name in unset)
    return f"{gradients}; {rounds}{squeezed}{counted}"


def _formulas(entry: Entry) -> Formulas:
    return formulas(entry.build(), entry.parameters)


# Hyperparameters


def _values(values: tuple[Any, ...]) -> str:
    """The values that tuning begins with; long lists by their ends."""
    shown = [f"{value:.4g}" for value in values]
    return (
        ", ".join(shown) if len(shown) <= 8 else f"{len(shown)} values, {shown[0]} to {shown[-1]}"
    )


def _unit(parameter: Parameter) -> str:
    """In what units the values that are tuned are."""
    how = (parameter.scaled.__doc__ or "Scaled.").rstrip(".") if parameter.scaled else ""
    return f"; tuned values are {typeset(how[0].lower() + how[1:])}" if how else ""


def parameters_of(names: Iterable[str], method: Method) -> str:
    """A table of hyperparameters: default, range, and the values that are tuned."""
    head = ["hyperparameter", "default", "may be", "tuned over"]
    rows = [_row(head), _row(["---"] * len(head))]
    for name in names:
        about = method.declared[name]
        may = about.range + (f" ({about.role})" if about.role else "") + _unit(about)
        rows.append(
            _row(
                [
                    _code(name),
                    str(method.parameters[name]),
                    may,
                    _values(about.tuned) or "not tuned",
                ]
            )
        )
    return "\n".join(rows)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


# How to call a method


def python_call(name: str, entry: Entry) -> str:
    """The call that makes the method with its default values."""
    values = ", ".join(
        f"{key}={_written(entry.build().parameters[key])}" for key in entry.parameters
    )
    function = getattr(entry.build, "__name__", "")
    exported = getattr(peer.methods, function, None) is entry.build
    return (
        f"peer.methods.{function}({values})"
        if exported
        else f'peer.methods.METHODS["{name}"].build({values})'
    )


def _written(value: Any) -> str:
    if isinstance(value, Compressor):
        return f"peer.compressors.{type(value).__name__}({', '.join(map(repr, dataclasses.astuple(value)))})"
    return repr(value)


def selector(name: str, entry: Entry) -> str:
    """The same on the command line."""
    values = ",".join(f"{key}={_word(entry.build().parameters[key])}" for key in entry.parameters)
    return f"{name}[{values}]"


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


# The parts of the page


def methods() -> str:
    """All named methods by purpose: a table, then a section for each."""
    parts = []
    for purpose, entries in by_purpose().items():
        parts += [f"## For {purpose}", _overview(entries)]
        parts += [method_section(name, entry) for name, entry in entries.items()]
    return "\n\n".join(parts)


def _overview(entries: dict[str, Entry]) -> str:
    rows = [
        _row(["method", "estimator × fusion", "gradients", "rounds", "needs of W"]),
        _row(["---"] * 5),
    ]
    for name, entry in entries.items():
        method, found = entry.build(), _formulas(entry)
        made = " × ".join(_code(type(part).__name__) for part in method.parts)
        each = (
            formula.expected(_symbol).replace(" - ", " − ")
            for formula in (found.gradients, found.rounds)
        )
        rows.append(_row([f"[`{name}`](#{name})", made, *each, needs_of(method.needs)]))
    return "\n".join(rows)


def method_section(name: str, entry: Entry) -> str:
    """The section of one method."""
    method, (first, rest) = entry.build(), _documented(entry.build)
    about = f"{first} {CITED.sub('', rest)}".strip()  # the citation follows
    settled = {
        key: value for key, value in method.parameters.items() if key not in entry.parameters
    }
    fixed = ", ".join(_code(f"{key}={value}") for key, value in settled.items())
    lines = [f"### `{name}`", f"{typeset(about)} *{typeset(entry.citation)}.*"]
    items = (
        [f"**Estimate** {_part(method.parts[0])}", f"**Step** {_part(method.parts[1])}"]
        if method.parts
        else []
    )
    items += [f"**Fixed here**: {fixed}."] if fixed else []
    items += [
        f"**Needs** of W: {needs_of(method.needs)}." + _sentence(_besides(method, entry.parameters))
    ]
    items += [f"**Costs** of an iteration, at a node: {costs_of(entry)}. {_numbers(method)}"]
    lines.append("\n".join(f"- {item}" for item in items))
    lines.append(parameters_of(entry.parameters, method))
    lines.append(f"```python\n{python_call(name, entry)}\n```")
    lines.append(f"```sh\npeerdescent run '{selector(name, entry)}'\n```")
    lines.append(_figure(name))
    return "\n\n".join(lines)


def _sentence(text: str) -> str:
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _part(part: Any) -> str:
    kind = type(part)
    first, rest = _documented(kind)
    return f"(`{kind.__name__}`): {typeset(f'{first} {rest}')}"


def _numbers(method: Method) -> str:
    gradients, rounds, sent = average(method)
    return (
        f"With the defaults on a9a over 20 nodes: {_plural(gradients, 'gradient')}, {_plural(rounds, 'round')} and "
        f"{_plural(sent, 'byte')} to each neighbour, on average."
    )


def _results() -> pd.DataFrame | None:
    path = FIGURES / "zoo.csv"
    return pd.read_csv(path).set_index("line") if path.is_file() else None


def _figure(name: str) -> str:
    """The figure of a method with what it was tuned to, or how to make it."""
    results = _results()
    if results is None or name not in results.index or not (FIGURES / f"{name}.png").is_file():
        return (
            f"*There is no figure of `{name}` yet: `peerdescent reproduce zoo` makes it; copy `zoo.csv` and "
            f"`{name}.png` to `docs/zoo`.*"
        )
    row = results.loc[name]
    end = f"gap {row['gap']:.3g} ± {row['deviation']:.1g} after {row['epoch']:.3g} epochs"
    if row["diverged"]:
        end = f"{row['diverged']} of {row['seeds']} runs diverged"
    caption = f"Tuned to `{row['method']}`: {end}."
    return (
        f"```{{figure}} zoo/{name}.png\n:alt: The loss of {name} by epochs and by bytes, among all methods\n"
        f":loading: lazy\n\n{caption}\n```"
    )


def grid() -> str:
    """The table of all pairs, with the names of those that have one."""
    estimators, fusions = peer.estimators.ESTIMATORS, peer.fusions.FUSIONS
    named: dict[tuple[str, str], list[str]] = {}
    for name, entry in peer.methods.METHODS.items():
        pair = tuple(type(part).__name__.replace("_", "-") for part in entry.build().parts)
        if len(pair) == 2:
            named.setdefault(pair, []).append(f"[`{name}`](#{name})")
    rows = [_row(["", *map(_code, estimators)]), _row(["---"] * (1 + len(estimators)))]
    for fusion in fusions:
        rows.append(
            _row([_code(fusion), *(" ".join(named.get((one, fusion), [])) for one in estimators)])
        )
    count = f"{len(estimators)} × {len(fusions)} = {len(estimators) * len(fusions)} methods"
    return f"{count}, of which {len(peer.methods.METHODS)} have names.\n\n" + "\n".join(rows)


def estimators() -> str:
    """The table of estimators: what they compute and cost."""
    rows = [_row(["estimator", "v{sub}`t`", "costs; hyperparameters"]), _row(["---"] * 3)]
    for name, kind in peer.estimators.ESTIMATORS.items():
        found = formulas(compose(kind(), peer.fusions.consensus()))
        cost = _iteration(found.first_gradients, found.gradients, "gradients")
        rows.append(_row([_code(name), _whole(kind), f"{cost}; {_defaults(kind)}"]))
    return "\n".join(rows)


def fusions() -> str:
    """The table of fusions: what they compute, need and cost."""
    rows = [
        _row(["fusion", "x{sub}`t+1`", "costs; hyperparameters; needs of W"]),
        _row(["---"] * 3),
    ]
    for name, kind in peer.fusions.FUSIONS.items():
        method = compose(peer.estimators.sgd(), kind())
        found = formulas(method)
        cost = _iteration(found.first_rounds, found.rounds, "rounds")
        rows.append(
            _row(
                [_code(name), _whole(kind), f"{cost}; {_defaults(kind)}; {needs_of(method.needs)}"]
            )
        )
    return "\n".join(rows)


def _whole(kind: Any) -> str:
    return typeset(" ".join(_documented(kind)).strip())


def _defaults(kind: Any) -> str:
    return ", ".join(_code(f"{name}={about.default}") for name, about in declared(kind).items())


EXAMPLES = ("top-k(0.1)", "random-k(0.1)", "sign", "quantize(4)", "identity")
"""Compressors whose messages are measured."""


def compressors() -> str:
    """The table of compressors: what they compute, and the bytes of a message."""
    rows = [
        _row(["compressor", "C(x)", "bytes", f"of {ENTRIES} entries in float32"]),
        _row(["---"] * 4),
    ]
    examples = {
        type(one).__name__.replace("_", "-"): one for one in map(peer.compressors.parse, EXAMPLES)
    }
    for name, kind in COMPRESSORS.items():
        fields = ", ".join(field.name for field in dataclasses.fields(kind))
        one = examples.get(name)
        size = f"{one.size(ENTRIES, ITEM)} by `{one}`" if one else ""
        bytes_of = re.sub(
            r"(?<![\w'])s(?!\w)", "w", _whole(kind.size)
        )  # beside it, s are the levels of quantize
        rows.append(
            _row([_code(f"{name}({fields})" if fields else name), _whole(kind), bytes_of, size])
        )
    return "\n".join(rows)


def picture() -> str:
    """The figure of all methods, if there is one."""
    if not (FIGURES / "all.png").is_file():
        return "*There is no figure of all methods yet: `peerdescent reproduce zoo` makes it.*"
    return (
        "```{figure} zoo/all.png\n:alt: The loss of all named methods by epochs and by bytes, and the last of each\n\n"
        "All methods, tuned, at the same cost in gradients. The colours are purposes.\n```"
    )


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (picture, methods, grid, estimators, fusions, compressors)
}
BLOCK = re.compile(r"^```\{zoo\} (\w+)\n```$", re.M)


def expanded(text: str) -> str:
    """The page with all its blocks replaced."""
    return BLOCK.sub(lambda block: PARTS[block[1]](), text)
