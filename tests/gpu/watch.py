"""Jobs that somebody makes slow, over NVLink, under `ncclflow watch`: an alert `slow` names the rank whose GPU computes longer, and
no alert begins where nobody does, or where counters cannot tell.

    python3 tests/gpu/watch.py PATH/TO/ncclflow [KIND …]

Needs root, torch and GPUs from Hopper on (RANKS, default 4). The jobs are those of slow.py. Prints what was said, the watch's
processor time and memory, and PASSED or FAILED. Takes two and a half minutes for each kind.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = int(os.environ.get("RANKS", "4"))
SECONDS = int(os.environ.get("SECONDS_EACH", "140"))
# What is put in, and the rank that must be named.
KINDS = {"none": None, "async": None, "mm10": RANKS - 2, "mm10async": RANKS - 2, "gc": None, "stage": None}


def run(program, kind):
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29542")
        job = [
            subprocess.Popen([sys.executable, f"{HERE}/slow.py", "--rank", kind, str(rank), folder], env=environment)
            for rank in range(RANKS)
        ]
        try:
            deadline = time.time() + 90
            while not all(os.path.exists(f"{folder}/ready.{rank}") for rank in range(RANKS)):
                if time.time() > deadline or any(rank.poll() is not None for rank in job):
                    return f"{kind}: the job did not start"
                time.sleep(0.1)
            pids = [rank.pid for rank in job]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            words = [program, "watch", "--json", "-p", ",".join(map(str, pids)), "-d", str(SECONDS)]
            watched = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS + 60)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        finally:
            for rank in job:
                rank.kill()
            for rank in job:
                rank.wait()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{kind}: {used / SECONDS * 100:.2f} % of a processor, at most {after.ru_maxrss >> 10} MiB")
    if watched.returncode:
        return f"{kind}: watch ended with {watched.returncode}: {watched.stderr}"
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    begun = [event for event in events if event["event"] == "begin"]
    for event in begun:
        print("   ", event["kind"], event["sentence"], flush=True)
    named = [(event["kind"], [culprit["pid"] for culprit in event["culprits"]]) for event in begun]
    wanted = [] if KINDS[kind] is None else [("slow", [pids[KINDS[kind]]])]
    return None if named == wanted else f"{kind}: {named} instead of {wanted}"


def main():
    program = os.path.abspath(sys.argv[1])
    kinds = sys.argv[2:] or [kind for kind in KINDS if kind != "stage" or RANKS == 4]
    wrong = [problem for kind in kinds if (problem := run(program, kind))]
    for problem in wrong:
        print("wrong:", problem)
    print(f"{'FAILED' if wrong else 'PASSED'}: watch.py: {len(kinds) - len(wrong)} of {len(kinds)}")
    sys.exit(bool(wrong))


main()
