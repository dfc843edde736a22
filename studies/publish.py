"""Copy the tables and figures of a reproduction into the documentation.

    python studies/publish.py runs/figure1-a9a runs/figure2-a9a ...

Each folder was written by `peerdescent reproduce`. Its CSV file is copied to `docs/reproduction`, along with a Markdown
table of the same numbers, the figure and the best parameters.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parent.parent / "docs" / "reproduction"


def markdown(table: pd.DataFrame) -> str:
    """A table with one row per method: mean and deviation of the loss; the smallest mean of a column is bold."""
    epochs = [name.removeprefix("loss@") for name in table.columns if name.startswith("loss@")]
    lines = [
        "| | " + " | ".join(f"{epoch} epochs" for epoch in epochs) + " |",
        "| --- |" + " --- |" * len(epochs),
    ]
    for row in table.to_dict("records"):
        cells = []
        for epoch in epochs:
            mean, deviation = row[f"loss@{epoch}"], row[f"deviation@{epoch}"]
            least = mean == table[f"loss@{epoch}"].min()
            number = "diverged" if mean != mean else f"**{mean:.5f}**" if least else f"{mean:.5f}"
            cells.append(number if mean != mean else f"{number} ± {deviation:.5f}")
        lines.append(f"| {row['line']} | " + " | ".join(cells) + " |")
    lines += ["", "With"]
    methods = table.drop_duplicates("method")
    lines += [f"- `{row['method']}`" for row in methods.to_dict("records")]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Publish every folder that is named."""
    DOCS.mkdir(exist_ok=True)
    for folder in map(Path, sys.argv[1:]):
        [source] = folder.glob("*.csv")
        name = (
            folder.name
            if folder.name.startswith(source.stem)
            else f"{folder.parent.name}-{folder.name}"
        )
        shutil.copy(source, DOCS / f"{name}.csv")
        shutil.copy(folder / f"{source.stem}.png", DOCS / f"{name}.png")
        (DOCS / f"{name}.md").write_text(markdown(pd.read_csv(source)), encoding="utf-8")
        optimum = json.loads((folder / "optimum.json").read_text())
        print(f"{name}: smallest F {optimum['value']:.7f}, searches ended at {optimum['values']}")


if __name__ == "__main__":
    main()
