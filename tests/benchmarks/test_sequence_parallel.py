"""The benchmark of sequences that are cut over processes."""

from argparse import Namespace

from benchmarks import sequence_parallel
from benchmarks.sequence_parallel import HEADS, WIDTH


def test_two_processes_send_each_other_the_state_and_its_gradient():
    """Forward a state with its normaliser, backward what both processes give to one another."""
    options = Namespace(seconds=0.0)
    found, failed = sequence_parallel.of_processes("linear", 64, 2, 1, options)
    assert failed is None
    head = WIDTH // HEADS
    state = 4 * HEADS * head * (head + 1)  # bytes
    assert [part["kilobytes_sent"] for part in found] == [(1 + 2) * state / 1000] * 2
    assert all(part["seconds"] > 0 for part in found)


def test_why_processes_failed_is_said():
    options = Namespace(seconds=0.0)
    found, failed = sequence_parallel.of_processes("linear", 1, 2, 1, options)
    assert not found
    assert failed


def test_without_one_thread_there_is_nothing_to_compare_with(monkeypatch, capsys):
    """As where one process has too little memory for what two of them share."""
    part = {"seconds": 1.0, "megabytes": 1.0, "kilobytes_sent": 0.0}

    def of_processes(model, length, processes, threads, options):
        return ([part] * 2, None) if processes == 2 else ([], "out of memory")

    monkeypatch.setattr(sequence_parallel, "of_processes", of_processes)
    *failed, last = sequence_parallel.at_length("linear", 64, Namespace())
    assert [row["failed"] for row in failed] == ["out of memory"] * 2
    assert last["seconds_per_step"] == 1
    assert "times_one_thread" not in last
