"""Jobs that somebody makes slow, over NVLink, under `ncclflow watch`: an alert `slow` names the rank whose GPU computes longer, and
no alert begins where nobody does, or where counters cannot tell.

    python3 tests/gpu/watch.py PATH/TO/ncclflow [KIND …]

    faults    a training in which a rank is stopped, is elsewhere, and is killed, at times that nobody knows: an alert each, that
              names it within 13 s, and its end
    cost      steps a second with and without a watch, in turns

Needs root, torch and GPUs from Hopper on (RANKS, default 4). The jobs are those of slow.py. Prints what was said, the watch's
processor time and memory, and PASSED or FAILED. Takes two and a half minutes for each kind.
"""

import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import placement

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = int(os.environ.get("RANKS", "4"))
SECONDS = int(os.environ.get("SECONDS_EACH", "140"))
# What is put in, and the rank that must be named.
KINDS = {"none": None, "async": None, "mm10": RANKS - 2, "mm10async": RANKS - 2, "gc": None, "stage": None}




class Job:
    """Ranks of a job of slow.py that train."""

    def __init__(self, kind, folder):
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29542")
        words = lambda rank: [sys.executable, f"{HERE}/slow.py", "--rank", kind, str(rank), folder]
        self.ranks = [
            subprocess.Popen(words(rank), env={**environment, **placement.environment(rank, RANKS)}) for rank in range(RANKS)
        ]
        self.pids = [rank.pid for rank in self.ranks]
        deadline = time.time() + 90
        while not all(os.path.exists(f"{folder}/ready.{rank}") for rank in range(RANKS)):
            if time.time() > deadline or any(rank.poll() is not None for rank in self.ranks):
                self.end()
                raise RuntimeError("the job did not start")
            time.sleep(0.1)

    def end(self):
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()


def watch(program, pids, seconds, out=subprocess.PIPE):
    words = [program, "watch", "--json", "-p", ",".join(map(str, pids)), "-d", str(seconds)]
    return subprocess.Popen(words, stdout=out, stderr=subprocess.PIPE, text=True)


def run(program, kind):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(kind, folder)
        try:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            watched = watch(program, job.pids, SECONDS)
            stdout, stderr = watched.communicate(timeout=SECONDS + 60)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        finally:
            job.end()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{kind}: {used / SECONDS * 100:.2f} % of a processor, at most {after.ru_maxrss >> 10} MiB")
    if watched.returncode:
        return f"{kind}: watch ended with {watched.returncode}: {stderr}"
    events = [json.loads(line) for line in stdout.splitlines()]
    begun = [event for event in events if event["event"] == "begin"]
    for event in begun:
        print("   ", event["kind"], event["sentence"], flush=True)
    named = [(event["kind"], [culprit["pid"] for culprit in event["culprits"]]) for event in begun]
    wanted = [] if KINDS[kind] is None else [("slow", [job.pids[KINDS[kind]]])]
    return None if named == wanted else f"{kind}: {named} instead of {wanted}"


def faults(program):
    """A rank is stopped, one is elsewhere, one is killed."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job("none", folder)
        told = []
        try:
            with open(f"{folder}/events", "w+") as out:
                watched = watch(program, job.pids, 600, out)
                time.sleep(20 + random.random() * 10)
                for fault in ("stopped", "elsewhere", "killed"):
                    rank = random.randrange(RANKS)
                    pid, path = job.pids[rank], f"{folder}/elsewhere.{rank}"
                    began = time.time()
                    if fault == "elsewhere":
                        open(path, "w").close()
                    else:
                        os.kill(pid, signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
                    time.sleep(20)
                    ended = time.time()
                    if fault == "elsewhere":
                        os.unlink(path)
                    elif fault == "stopped":
                        os.kill(pid, signal.SIGCONT)
                    told.append((fault, rank, pid, began, ended))
                    # At most one alert of a job begins in a minute.
                    time.sleep(45 + random.random() * 10 if fault != "killed" else 5)
                watched.send_signal(signal.SIGINT)
                stderr = watched.communicate(timeout=60)[1]
                out.seek(0)
                events = [json.loads(line) for line in out]
        finally:
            job.end()
    wrong = []
    for fault, rank, pid, began, ended in told:
        wanted = "gone" if fault == "killed" else "hang"
        of_fault = [event for event in events if began - 1 <= event["unixTimeNs"] / 1e9 <= ended + 15]
        begun = [event for event in of_fault if event["event"] == "begin"]
        ends = [event for event in of_fault if event["event"] == "end"]
        for event in begun:
            print(f"    {fault} rank {rank}: after {event['unixTimeNs'] / 1e9 - began:.1f} s: {event['kind']}: {event['sentence']}")
        is_right = [(event["kind"], [culprit["pid"] for culprit in event["culprits"]]) for event in begun] == [(wanted, [pid])]
        if not is_right or begun[0]["unixTimeNs"] / 1e9 - began > 14:
            wrong.append(f"{fault} rank {rank} ({pid}): {of_fault}")
        elif fault != "killed" and len(ends) != 1:
            wrong.append(f"{fault}: {len(ends)} ends")
    begun = sum(event["event"] == "begin" for event in events)
    if begun != 3:
        wrong.append(f"{begun} alerts begin")
    print("\n".join([f"faults: {'wrong' if wrong else 'right'}", *wrong, stderr.strip()[:300]]), flush=True)
    return "; ".join(wrong) or None


def cost(program):
    """Steps a second with and without a watch, in turns of ten seconds."""
    turn = 10
    with tempfile.TemporaryDirectory() as folder:
        job = Job("none", folder)
        spans = []
        try:
            time.sleep(5)
            for at in range(SECONDS // turn):
                watched = watch(program, job.pids, 600) if at % 2 else None
                time.sleep(1)
                began = time.time()
                time.sleep(turn - 2)
                spans.append((at % 2, began, time.time()))
                if watched:
                    watched.send_signal(signal.SIGINT)
                    watched.communicate(timeout=60)
            steps = [float(line) for line in open(f"{folder}/steps.0")]
        finally:
            job.end()
    rates = {0: [], 1: []}
    for is_watched, began, ended in spans:
        within = [step for step in steps if began <= step <= ended]
        rates[is_watched].append((len(within) - 1) * 20 / (within[-1] - within[0]))
    without, beside = (statistics.median(rates[is_watched]) for is_watched in (0, 1))
    noise = max(rates[0]) - min(rates[0])
    print(f"cost: {without:.2f} steps a second without a watch, {beside:.2f} with one; noise {noise:.2f}", flush=True)
    return None if beside >= without - noise else f"cost: {rates}"


def main():
    program = os.path.abspath(sys.argv[1])
    kinds = sys.argv[2:] or [kind for kind in KINDS if kind != "stage" or RANKS >= 4]
    own = {"faults": faults, "cost": cost}
    runs = (own[kind](program) if kind in own else run(program, kind) for kind in kinds)
    wrong = [problem for problem in runs if problem]
    for problem in wrong:
        print("wrong:", problem)
    print(f"{'FAILED' if wrong else 'PASSED'}: watch.py: {len(kinds) - len(wrong)} of {len(kinds)}")
    sys.exit(bool(wrong))


main()
