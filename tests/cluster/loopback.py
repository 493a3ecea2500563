"""A real Slurm on this machine alone: two nodes, on loopback, gone when the block ends.

    python -m tests.cluster.loopback        prints what to export, and runs until Ctrl-C

Its daemons, keys, logs and ports are its own: nothing outside its folder is read or written, so
several of them run side by side. It has no accounting: `sacct` knows nothing, and a job that ended
is known to `scontrol show job` alone.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
NODES = ("n1", "n2")
START = 20.0  # seconds in which both nodes have to be idle
END = 40.0  # and jobs have to end: Slurm kills them after thirty
POLL = 0.1

# A node that was set down stays so (ReturnToService).
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
FirstJobId={first}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=1
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
SlurmdParameters=config_overrides
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000\n"


class CannotStartError(RuntimeError):
    """Slurm cannot run here; the message says why."""


class Cluster:
    """A Slurm that runs.

    Args:
        folder: The folder of its configuration, keys, logs and state.
        environment: What its commands, and the jobs, have besides this process's environment.
    """

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.folder = folder
        self.environment = environment

    def call(self, *words: str | Path, **more: str) -> str:
        """Return what a command of Slurm's prints.

        Args:
            words: The command.
            more: Variables of its environment.
        """
        done = subprocess.run(
            words, env={**os.environ, **self.environment, **more},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def submit(self, *words: str | Path, **more: str) -> str:
        """Return the number of a job that `sbatch` is given.

        Args:
            words: The options, the script and its arguments.
            more: Variables of its environment.
        """
        return self.call("sbatch", "--parsable", *words, **more).strip()

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job: JobState, Restarts, ExitCode, NodeList, ..."""
        said = self.call("scontrol", "show", "job", number)
        return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", said))

    def start_again(self, number: str, seconds: float) -> None:
        """Start a job that is in the queue again, as soon as its processes are gone.

        Slurm would wait for two minutes: what it hears of the earlier start would end the new one.

        Args:
            number: The job.
            seconds: The longest time to wait for its processes.
        """
        if not wait_until(lambda: not _steps(number), seconds):
            raise RuntimeError(f"job {number} still runs\n{self.logs()}")
        # Slurm counts whole seconds: a node refuses what starts in the one in which it was told
        # that the job is gone ("already killed, do not launch").
        self.call("scontrol", "update", f"jobid={number}", "starttime=now+2", "timelimit=60")

    def end_jobs(self) -> None:
        """Cancel every job, and wait: its processes would outlive the daemons."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            if "down" in self.nodes():
                self.call("scontrol", "update", f"nodename={','.join(NODES)}", "state=resume")
            self.call("scancel", "--user=root")
            wait_until(lambda: not self.call("squeue", "--noheader"), END)

    def nodes(self) -> list[str]:
        """Return the state of each node."""
        return self.call("sinfo", "--noheader", "--Node", "--format=%T").split()

    def logs(self) -> str:
        """Return the last lines of each daemon's log."""
        tails = (f"{path}:\n{path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))
        return "\n".join(tails)


def unavailable() -> str | None:
    """Return why Slurm cannot run here, or None."""
    for program in PROGRAMS:
        if shutil.which(program, path=_path()) is None:
            return f"Slurm is not installed: there is no {program}"
    # A slurmd starts jobs in the name of their users.
    return None if os.geteuid() == 0 else "slurmd runs as root only"


@contextmanager
def loopback() -> Iterator[Cluster]:
    """Run Slurm for as long as this lasts.

    Raises:
        CannotStartError: It cannot run here, or its nodes were not idle in time.
    """
    if reason := unavailable():
        raise CannotStartError(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        folder.chmod(0o755)  # munged asks for it
        cluster = Cluster(folder, _configure(folder))
        with ExitStack() as daemons:
            for words in _daemons(folder):
                daemons.enter_context(_running(*words, environment=cluster.environment))
            if not wait_until(lambda: _are_idle(cluster), START):
                raise CannotStartError(f"no two idle nodes in {START:.0f} s\n{cluster.logs()}")
            try:
                yield cluster
            finally:
                cluster.end_jobs()


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Return whether something holds within a time."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(POLL)
    return held


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


def _configure(folder: Path) -> dict[str, str]:
    """Write the configuration into a folder; return the variables that commands and jobs need."""
    host = socket.gethostname().partition(".")[0]
    controller, master, *ports = _free_ports(2 + len(NODES))
    configuration = folder / "slurm.conf"
    nodes = (
        NODE.format(name=name, host=host, port=port)
        for name, port in zip(NODES, ports, strict=True)
    )
    *general, partition = CONFIGURATION.format(
        folder=folder, host=host, controller=controller, first=random.randrange(1000, 60000)
    ).splitlines(keepends=True)
    configuration.write_text("".join([*general, *nodes, partition]))
    for name in ("state", "munge", *(f"spool-{name}" for name in NODES)):
        (folder / name).mkdir()
    key = folder / "munge/key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    return {
        "PATH": _path(),
        "SLURM_CONF": str(configuration),
        # No name server knows the nodes: Lightning would look for the first one.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _daemons(folder: Path) -> Iterator[tuple[str, ...]]:
    munge = folder / "munge"
    files = {"key": "key-file", "socket": "socket", "pid": "pid-file", "seed": "seed-file"}
    options = [f"--{option}={munge / name}" for name, option in files.items()]
    yield "munged", "--foreground", "--force", *options, f"--log-file={folder}/munged.log"
    yield "slurmctld", "-D"
    for name in NODES:
        yield "slurmd", "-D", "-N", name


@contextmanager
def _running(*words: str, environment: dict[str, str]) -> Iterator[None]:
    """Run a daemon, in a group of its own so that Ctrl-C does not end it before its jobs."""
    process = subprocess.Popen(
        words, env={**os.environ, **environment}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _are_idle(cluster: Cluster) -> bool:
    with contextlib.suppress(RuntimeError):  # slurmctld does not answer yet
        return cluster.nodes() == ["idle"] * len(NODES)
    return False


def _steps(number: str) -> list[Path]:
    """Return the processes by which Slurm runs a job, which are called by its number."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it is gone
            if process.read_text().startswith(f"slurmstepd: [{number}."):
                found.append(process.parent)
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    """Run Slurm until Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), loopback() as cluster:
        for name, value in cluster.environment.items():
            print(f"export {name}={value}")
        print("# Ctrl-C ends it", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
