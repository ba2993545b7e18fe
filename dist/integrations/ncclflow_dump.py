"""What a watchdog calls before it ends a job: why does it hang?

    from ncclflow_dump import dump
    code, report = dump(pids=[4242, 4243], folder="/var/tmp/hangs")

Never raises, and never takes longer than `seconds`, so that a watchdog can always go on. `code` is ncclflow's exit
code: 0 healthy, 3 stuck, 5 waiting for a rank that makes progress elsewhere, 4 cannot tell; None where it did not run to
its end. `report` is the JSON of `ncclflow dump` (docs/DUMP.md), or None.
"""

import json
import os
import subprocess
import tempfile
import time

# As it is called by a user who is not root; a service that is root calls it by its name.
PROGRAM = ("sudo", "-n", "ncclflow") if os.geteuid() != 0 else ("ncclflow",)
# A dump of a host with many ranks has some megabytes.
MAX_BYTES = 256 << 20


def dump(pids=None, seconds=60, folder=None, program=PROGRAM, more=()):
    """Dumps these processes, or all of this host that use NCCL. Keeps the JSON in `folder`, if there is one.

    `more`: further words, as ["--slurm", "4711"] for all hosts of a job in place of `pids`.
    """
    words = [*program, "dump", "--json", *more]
    if pids:
        words += ["-p", ",".join(str(pid) for pid in pids)]
    try:
        # Into a file: a pipe that nobody empties would hold the program up.
        with tempfile.TemporaryFile() as out:
            code = _run(words, out, seconds)
            out.seek(0)
            text = out.read(MAX_BYTES)
        report = json.loads(text)
        if folder is not None:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            name = os.path.join(folder, f"ncclflow-{time.time_ns()}.json")
            with open(name, "xb") as file:
                file.write(text)
        return code, report if isinstance(report, dict) else None
    except Exception:  # A watchdog goes on whatever this one meets.
        return None, None


def _run(words, out, seconds):
    """Runs it to its end; None if that takes too long: then it is not waited for."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return None


def sentence(report):
    """The verdict in one line, for a log."""
    job = (report or {}).get("job") or {}
    return job.get("sentence") or "ncclflow could not tell"
