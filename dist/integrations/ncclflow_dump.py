"""What a watchdog calls before it ends a job: why does it hang?

    from ncclflow_dump import dump
    code, report = dump(pids=[4242, 4243], folder="/var/tmp/hangs")

Never raises by itself (what a signal's handler raises meanwhile goes through), and never takes longer than `seconds`,
so that a watchdog can always go on. `code` is ncclflow's exit code: 0 healthy, 3 stuck, 5 waiting for a rank that makes
progress elsewhere, 4 cannot tell; None where it did not run to its end. `report` is the JSON of `ncclflow dump`
(docs/DUMP.md), or None.

The examples beside this file call `ask`, which `$NCCLFLOW_DUMP_SECONDS` and `$NCCLFLOW_DUMP_FOLDER` set up.
"""

import fcntl
import json
import logging
import os
import subprocess
import tempfile
import threading
import time

# As it is called by a user who is not root; a service that is root calls it by its name.
PROGRAM = ("sudo", "-n", "ncclflow") if os.geteuid() != 0 else ("ncclflow",)
# A dump of a host with many ranks has some megabytes.
MAX_BYTES = 256 << 20


def dump(pids=None, seconds=60, folder=None, program=PROGRAM, more=()):
    """Dumps these processes, or all of this host that use NCCL. Keeps the JSON in `folder`, if there is one.

    Where several processes ask for all of the host at one time, as the watchdogs of its ranks do, and have one
    `folder`, one of them dumps, and all have its answer.

    `more`: further words, as ["--slurm", "4711"] for all hosts of a job in place of `pids`.
    """
    words = [*program, "dump", "--json", *more]
    if pids:
        words += ["-p", ",".join(str(pid) for pid in pids)]
    if seconds <= 0:
        return None, None
    answers = []
    # A little less than the caller waits: it ends the program before it gives up.
    end = time.monotonic() + 0.95 * seconds

    def work():
        try:
            is_shared = not pids and not more and _is_ours(folder)
            answers.append(_shared(words, end, folder) if is_shared else _dump(words, end, folder)[:2])
        except Exception:  # A watchdog goes on whatever this one meets.
            pass

    # In a thread: whatever holds it up, the caller does not wait for it longer than that.
    thread = threading.Thread(target=work, name="ncclflow dump", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # There are too many, or Python is about to end.
        return None, None
    thread.join(seconds)
    return answers[0] if answers else (None, None)


def _dump(words, end, folder):
    """Dumps; gives the exit code, the report, and the name of its file, if it was kept."""
    # Into a file: a pipe that nobody empties would hold the program up.
    with tempfile.TemporaryFile() as out:
        code = _run(words, out, end)
        out.seek(0)
        text = out.read(MAX_BYTES)
    return code, _report(text), _keep(text, folder)


def _run(words, out, end):
    """Runs it to its end; None if that takes too long: then it is not waited for."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
    try:
        return process.wait(max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return None


def _report(text):
    report = json.loads(text)
    return report if isinstance(report, dict) else None


def _keep(text, folder):
    if folder is None:
        return None
    name = f"ncclflow-{time.time_ns()}.json"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, name), "xb") as file:
            file.write(text)
    except OSError:  # What it says can be told all the same.
        return None
    return name


def _is_ours(folder):
    """Tells whether this user alone says what is in a folder, which is made."""
    if folder is None:
        return False
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and status.st_mode & 0o022 == 0


def _shared(words, end, folder):
    """Dumps, or waits for another process that does, and gives the answer of that one."""
    asked = time.time_ns()
    with open(os.path.join(folder, "last"), "a+") as last:
        while not _locked(last):
            if time.monotonic() > end:
                return None, None
            time.sleep(0.1)
        last.seek(0)
        told = last.read().split()
        # The name has the time at which the dump had ended.
        if len(told) == 2 and int(told[1][len("ncclflow-") : -len(".json")]) >= asked:
            with open(os.path.join(folder, told[1]), "rb") as file:
                return int(told[0]), _report(file.read(MAX_BYTES))
        code, report, name = _dump(words, end, folder)
        if code is not None and name is not None:
            last.truncate(0)
            last.write(f"{code} {name}")
        return code, report


def _locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sentence(report):
    """The verdict in one line, for a log."""
    job = (report or {}).get("job") or {}
    return job.get("sentence") or "ncclflow could not tell"


def limit():
    """How long the examples wait, in seconds: `$NCCLFLOW_DUMP_SECONDS`, or 60."""
    try:
        return max(0.0, min(float(os.environ["NCCLFLOW_DUMP_SECONDS"]), 3600.0))
    except (KeyError, ValueError):
        return 60.0


def kept_in():
    """Where the examples keep reports: `$NCCLFLOW_DUMP_FOLDER`."""
    return os.environ.get("NCCLFLOW_DUMP_FOLDER") or "/var/tmp/hangs"


def ask(logger, pids=None):
    """What the examples do: dump, and tell the log. Raises and takes as `dump` does."""
    code, report = dump(pids, limit(), kept_in())
    tell(logger, code, report)


def tell(logger, code, report, what="ncclflow"):
    """Writes a dump's verdict to a log."""
    logger.log(logging.ERROR, "%s: %s (exit code %s)", what, sentence(report), code)


def of_all(reports, seconds):
    """One verdict of the reports of several hosts, which have names. Keeps them in a folder of their own."""
    folder = os.path.join(kept_in(), f"hosts-{time.time_ns()}")
    for name, report in reports.items():
        if report is not None:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(os.path.join(folder, f"{name}.json"), "x") as file:
                json.dump(report, file)
    # It reads the files alone: as any user.
    return dump(seconds=seconds, program=["ncclflow"], more=["--merge", folder])
