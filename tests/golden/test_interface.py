"""What users can call: a change here is a line in the changelog, and a new `interface.txt` by `record.py`."""

import cases
from interface import lines


def test_the_interface_is_as_it_was():
    assert lines() == cases.INTERFACE.read_text().splitlines()
