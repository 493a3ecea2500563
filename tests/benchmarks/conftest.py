"""What the tests of benchmarks share."""

import pytest

from benchmarks import record


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The folder that measurements are written into, instead of the project's; not there yet."""
    folder = tmp_path / "results"
    monkeypatch.setattr(record, "RESULTS", folder)
    return folder
