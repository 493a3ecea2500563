"""Slurm: a job that is warned of its end goes back into the queue, once."""

import os
import subprocess

from linear_transformers.stopping import Stopped

# A job that its user cancels gets SIGTERM: it must not come back.
WARNINGS = ("SIGUSR1", "SIGUSR2")
# Slurm ends all that the job runs as soon as it is asked, scontrol too, which has yet to hear that
# it was. What a shell ignores, the program that takes its place ignores.
REQUEUE = ("sh", "-c", 'trap "" TERM USR1 USR2; exec scontrol requeue "$0"')


def requeue(stopped: Stopped, *, continues: bool) -> list[str]:
    """Put this process's Slurm job back into the queue, where its signal is such a warning.

    Args:
        stopped: The signal.
        continues: Whether the same command, started again, continues the run.

    Returns:
        A line on what was done; none outside of Slurm, or for another signal.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or stopped.signal.name not in WARNINGS:
        return []
    if not continues:
        return [
            f"requeue  Slurm job {job} was not requeued: the same command would start anew. Give "
            "it run_id=NAME resume=auto"
        ]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        subprocess.run([*REQUEUE, job], check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return [f"requeue  Slurm job {job} could not be requeued: {said.strip()}"]
    return [f"requeue  Slurm job {job} is in the queue again"]
