from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from peerdescent.cli import console


@pytest.mark.parametrize("width", [80, 100, 120, 140])
def test_tables_fit_the_terminal(width):
    row = {"step": 123456, "epoch": 30.0, "loss": 0.123456, "grad_norm": 1e-3, "stationarity": 1e-6, "consensus": 1e-9}
    row |= {"tracking": 0.0, "gradients": 1.2e6, "rounds": 246912, "bytes": 1.23e9, "seconds": 1234.5}
    final = pd.DataFrame(
        [{"method": "gt-hsgd[alpha=0.5,beta=0.01]", **row, "compile_seconds": 1.0, "status": "diverged"}]
    )
    for layout, table in ((console.trace, pd.DataFrame([row])), (console.comparison, final)):
        out = StringIO()
        Console(file=out, width=width, markup=False).print(layout(table, width))
        head, _, first, *_ = out.getvalue().splitlines()
        assert {"loss", "bytes", "seconds"} <= set(head.split())
        assert "0.123456" in first.split()
        assert {"1.23", "GB", "1234.50"} <= set(first.split())
        assert layout is console.trace or first.startswith("gt-hsgd[alpha=0.5,")


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("loss", 0.5, "0.500000"),
        ("grad_norm", 0.00123, "1.23e-03"),
        ("rounds", 1234567, "1,234,567"),
        ("bytes", 1234567.0, "1.23 MB"),
        ("tracking", float("nan"), "-"),
        ("method", "dsgd[alpha=1,batch=2]", "dsgd[alpha=1, batch=2]"),
        ("configurations", 2187, "2,187"),
        ("test_accuracy", 0.91234567, "0.912346"),
        ("exponent assumed", True, "yes"),
    ],
)
def test_a_cell_has_the_format_of_its_column(column, value, shown):
    assert console.cell(column, value) == shown
