"""Python values as JSON."""

from __future__ import annotations

from pathlib import Path

from ludus.data.json_files import to_jsonable


def test_values_that_json_cannot_hold_become_the_name_of_their_type() -> None:
    class Strange:
        pass

    assert to_jsonable({"a": Strange(), "b": {3, 1}, "c": Path("x"), 1: (float("inf"),)}) == {
        "a": "Strange",
        "b": [1, 3],
        "c": "x",
        "1": [None],
    }


def test_a_scalar_tensor_becomes_a_number() -> None:
    import torch

    assert to_jsonable(torch.tensor(0.5)) == 0.5
