from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from peerdescent.cli import console


@pytest.mark.parametrize("width", [80, 100, 120, 140])
def test_tables_fit_the_terminal(width):
    row = {
        "step": 123456,
        "epoch": 30.0,
        "loss": 0.123456,
        "grad_norm": 1e-3,
        "stationarity": 1e-6,
        "consensus": 1e-9,
    }
    row |= {
        "tracking": 0.0,
        "gradients": 1.2e6,
        "rounds": 246912,
        "bytes": 1.23e9,
        "seconds": 1234.5,
    }
    head = {"method": "gt-hsgd[alpha=0.5,beta=0.01]", "selector": "gt-hsgd[...]", "seeds": 5}
    spread = {f"{name}_deviation": 0.0 for name in row} | {
        "loss_deviation": 0.0012,
        "seconds_deviation": 0.12,
    }
    final = pd.DataFrame(
        [
            {
                **head,
                **row,
                **spread,
                "compile_seconds": 1.0,
                "leads": True,
                "status": "4 done, 1 diverged",
            }
        ]
    )
    for layout, table in ((console.trace, pd.DataFrame([row])), (console.comparison, final)):
        out = StringIO()
        Console(file=out, width=width, markup=False).print(layout(table, width))
        head, _, first, *_ = out.getvalue().splitlines()
        assert {"loss", "bytes", "seconds"} <= set(head.split())
        assert layout is not console.trace or "0.123456" in first.split()
        assert {"1.23", "GB", "1234.50"} <= set(first.split())
        assert layout is console.trace or first.startswith("gt-hsgd[")
        assert layout is console.trace or "0.1235 ± 0.0012" in first, (
            "as many digits as the deviation supports"
        )


@pytest.mark.parametrize(("width", "kept"), [(120, 11), (100, 10), (80, 8), (64, 7)])
def test_numbers_of_a_trace_are_not_broken(width, kept):
    row = {
        "step": 890000,
        "epoch": 19999.99,
        "loss": 0.176342,
        "grad_norm": 5e-4,
        "consensus": 2e-8,
        "rounds": 1780000,
    }
    row |= {
        "gradients": 1779999,
        "bytes": 3.65e9,
        "seconds": 13.14,
        "clock": 26.75,
        "test_accuracy": 0.25,
    }
    out = StringIO()
    Console(file=out, width=width, markup=False).print(
        console.trace(pd.DataFrame([row] * 2), width)
    )
    head, _, *lines = out.getvalue().splitlines()
    shown = [name for name in row if name.replace("_", " ") in head]
    assert len(shown) == kept, head
    assert {"step", "loss", "bytes", "clock", "test_accuracy"} <= set(shown)
    assert all(console.cell(name, row[name]) in lines[0] for name in shown)
    assert [" ".join(line.split()) for line in lines[2:]] == [console.MORE][: kept < len(row)]


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


def test_what_is_said_during_a_wait_stands_on_its_own_line(monkeypatch):
    out = StringIO()
    monkeypatch.setattr(
        console, "make", lambda stderr=False: Console(file=out, width=80, force_terminal=True)
    )
    with console.waiting("loading", quiet=False):
        console.say("one note")
        console.say("another note")
    console.say("the end")
    between = out.getvalue().partition("one note")[2].partition("another note")[0]
    assert "loading" in between, "the spinner is drawn again below the first note"
    assert between.endswith("\x1b[2K"), "its line is cleared before the second"
    assert out.getvalue().endswith("the end\n")
