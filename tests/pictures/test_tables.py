"""Tables: numbers by the digits that mean something."""

from math import inf

from linear_transformers.pictures.tables import markdown, rounded


def test_numbers_are_reported_by_the_digits_that_mean_something():
    given = [1.86642, 0.0146, 12345.678, 1e-7, 65536, "32-true", True, None, inf]
    wanted = [1.866, 0.0146, 12350, 1e-7, 65536, "32-true", True, None, inf]
    assert [repr(rounded(value)) for value in given] == [repr(value) for value in wanted]


def test_a_table_has_them():
    assert markdown([{"test_bits_per_dim": 1.86642, "name": "a|b\nc"}]).splitlines() == [
        "| test bits per dim | name |", "| --- | --- |", "| 1.866 | a\\|b<br>c |"
    ]  # fmt: skip
