"""Signals that stop a program: raised at once, or noted until a place where nothing is lost.

Ctrl-C, SIGTERM, and the warnings of schedulers, SIGUSR1 and SIGUSR2, all mean the same: end soon,
and lose nothing.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from signal import Signals
from typing import Any

SIGNALS = [
    Signals[name] for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
]
ELSEWHERE = Signals.SIGTERM  # stands for a signal that came to another process of the run
SENT_AGAIN = 0.05  # seconds: by then the finalizer that a signal came in is left
SAME_KEYPRESS = 0.5  # seconds: the terminal and `uv run` may both deliver one Ctrl-C


class Stopped(BaseException):
    """A signal stopped the program. No `Exception`, so that nothing takes it for a failure.

    Attributes:
        signal: The signal.
        lines: What to tell the user: what was kept, and the command that goes on.
    """

    def __init__(self, number: Signals):
        super().__init__(f"by {'Ctrl-C' if number == Signals.SIGINT else number.name}")
        self.signal = number
        self.lines: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:  # from the process of a launcher
        return type(self), (self.signal,)

    @property
    def exit_code(self) -> int:
        """The exit code that shells give to a process that died of this signal."""
        return 128 + self.signal


@dataclass
class _State:
    """The signal that came, and when; whether it has to wait, and whether that is said."""

    noted: Signals | None = None
    since: float = 0.0
    deferring: bool = False
    silent: bool = False


_state = _State()


@contextmanager
def catching(*, silent: bool = False) -> Iterator[None]:
    """Raise `Stopped` in the main thread when one of the signals comes, for as long as this lasts.

    What comes after the first is ignored, but a second Ctrl-C ends the process at once.

    Args:
        silent: Whether to leave out the line that says so where a signal is only noted.
    """
    mine = signal.getsignal(SIGNALS[0]) is _on_signal
    if mine or threading.current_thread() is not threading.main_thread():
        yield  # already; or not possible: only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook = sys.unraisablehook
    sys.unraisablehook = partial(_send_again, hook)
    _state.noted, _state.deferring, _state.silent = None, False, silent
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # a shell ignores Ctrl-C for what runs in the background
            signal.signal(number, _on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        _state.noted = None


def left_to_parent(worker: int = 0) -> None:
    """Ignore the signals in a worker, which gets those of its group: its parent ends it.

    Args:
        worker: The worker's number, which a loader of torch gives.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def deferred(*, silent: bool = False) -> Iterator[None]:
    """Note signals instead of raising; whoever finds one by `noted` or `check` ends the body.

    Args:
        silent: Whether to leave out the line that says so: the end is a moment away.

    Raises:
        Stopped: A signal came, and the body has ended by itself.
    """
    before = _state.silent
    _state.deferring, _state.silent = True, before or silent
    try:
        yield
    finally:
        _state.deferring, _state.silent = False, before
    check()


def noted() -> Signals | None:
    """Return the signal that came, if one did."""
    return _state.noted


def check() -> None:
    """Stop here if a signal came.

    Raises:
        Stopped: One did.
    """
    if _state.noted is not None:
        raise Stopped(_state.noted)


def pass_on(stopped: Stopped) -> None:
    """Give a signal to whoever heard it before `catching`, as launchers do that requeue a job.

    Args:
        stopped: The signal.
    """
    handler = signal.getsignal(stopped.signal)
    if callable(handler) and handler not in (signal.default_int_handler, _on_signal):
        # Slurm ends all that the job runs as soon as it is asked to requeue it, scontrol too, which
        # has yet to hear that it was. What this process ignores, the programs it starts ignore.
        before = signal.signal(Signals.SIGTERM, signal.SIG_IGN)
        try:
            handler(stopped.signal, None)
        finally:
            signal.signal(Signals.SIGTERM, before)


def is_unread(pipe: int) -> bool:
    """Return whether a pipe's reader is gone, as `| head` is once it has read enough.

    Args:
        pipe: The descriptor of its writing end, or of anything else, which has no reader.
    """
    if not hasattr(select, "poll"):
        return False  # as on Windows
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def write_to_nobody(pipe: int) -> None:
    """Let what is written to a pipe from now on go nowhere, and raise nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), pipe)


def _let_go_of_readers() -> None:
    """Go on where Ctrl-C has ended who reads this, as in `| tee log`: all is still to be saved."""
    for pipe in (1, 2):
        if is_unread(pipe):
            write_to_nobody(pipe)


def _send_again(hook: Callable[[Any], object], lost: Any) -> None:
    """Send a signal anew that came in a finalizer, out of which Python lets no exception."""
    if isinstance(lost.exc_value, Stopped):
        _state.noted = None
        threading.Timer(SENT_AGAIN, os.kill, (os.getpid(), lost.exc_value.signal)).start()
    else:
        hook(lost)


def _on_signal(number: int, frame: object) -> None:
    now = time.monotonic()
    if _state.noted is None:
        _state.noted, _state.since = Signals(number), now
        if not _state.deferring:
            raise Stopped(_state.noted)
        _let_go_of_readers()
        if not _state.silent:  # print may be what was interrupted
            os.write(2, b"stopping at the end of the batch; Ctrl-C in a second ends at once\n")
    elif number == Signals.SIGINT and now - _state.since > SAME_KEYPRESS:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
