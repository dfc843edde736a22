"""Tables of means and deviations as text: Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from peerdescent.runs.cells import Cell


def markdown(head: Sequence[str], rows: Sequence[Sequence[str | Cell]]) -> str:
    """A table in Markdown; numbers are aligned to the right.

    >>> print(markdown(["method", "loss"], [["dsgd", Cell("0.19", "0.02")], ["gt-hsgd", Cell("0.18", best=True)]]))
    | method | loss |
    |---|---:|
    | dsgd | 0.19 ± 0.02 |
    | gt-hsgd | **0.18** |
    """

    def text(one: str | Cell) -> str:
        if isinstance(one, str):
            return one.replace("|", r"\|").replace("*", r"\*")
        return f"**{one}**" if one.best else str(one)

    rules = ["---:" if isinstance(one, Cell) else "---" for one in rows[0]]
    body = [f"| {' | '.join(map(text, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'|'.join(rules)}|", *body])


def latex(head: Sequence[str], rows: Sequence[Sequence[str | Cell]]) -> str:
    r"""A LaTeX table with the rules of booktabs.

    >>> print(latex(["method", "loss"], [["a_b", Cell("3.2", "0.1", -7)], ["gt-hsgd", Cell("2.8", best=True)]]))
    \begin{tabular}{lr}
    \toprule
    method & loss \\
    \midrule
    a\_b & $(3.2 \pm 0.1)\times 10^{-7}$ \\
    gt-hsgd & \textbf{2.8} \\
    \bottomrule
    \end{tabular}
    """

    def text(one: str | Cell) -> str:
        if isinstance(one, str):
            return "".join(_ESCAPED.get(letter, letter) for letter in one)
        if not (one.deviation or one.power or one.text.startswith("-")):
            return rf"\textbf{{{text(one.text)}}}" if one.best else text(one.text)
        both = one.joined(r"\pm", r"\times 10^{{{}}}").replace(",", "{,}")
        return (rf"$\mathbf{{{both}}}$" if one.best else f"${both}$") + text(one.unit)

    columns = "".join("r" if isinstance(one, Cell) else "l" for one in rows[0])
    table = pd.DataFrame(
        [[text(one) for one in row] for row in rows], columns=[text(name) for name in head]
    )
    return table.to_latex(index=False, escape=False, column_format=columns).rstrip()


_ESCAPED = {letter: f"\\{letter}" for letter in "&%$#_{}"}
_ESCAPED |= {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "–": "--",
}
