#!/usr/bin/env bash
# What a default `record` of a torch job costs: processor time and bytes on disk, of several builds in turn, on the same job.
#
#   PROGRAMS="PATH …" tests/gpu/record_cost.sh NAME RANKS [NAME=VALUE …] -- [options of workload.py]
#
# Needs root, GPUs and torch. Each program records $SECONDS_EACH (default 5) of the job, $ROUNDS (default 3) times. With $RATIO the median of the
# first program may be at most this part of the last one's.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
. tests/gpu/job.sh
trap kill_ranks EXIT

start_ranks job 29531 400 workload.py "$@"
touch "$work/go"
sleep 5
for round in $(seq "${ROUNDS:-3}"); do
    for program in $PROGRAMS; do
        out=$work/out log=$work/record.err
        rm -rf "$out"
        python3 - "$program" "$out" "$(pids_of job)" "${SECONDS_EACH:-5}" "$log" <<'P' | tee -a "$work/costs"
import os, resource, subprocess, sys
program, out, pids, seconds, log = sys.argv[1:]
code = subprocess.run([program, "record", "-p", pids, "-o", out, "-d", seconds], stderr=open(log, "w"), stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
size = lambda folder: sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
recording = os.path.join(out, "recording")
print(program, f"{used.ru_utime + used.ru_stime:.2f} s of processor time, {size(out) >> 10} KiB, {size(recording) >> 10} of them the recording, code {code}", flush=True)
P
    done
done
tail -n 3 "$work/record.err"
python3 - "$work/costs" "${RATIO:-}" <<'P'
import statistics, sys
by = {}
for line in open(sys.argv[1]):
    by.setdefault(line.split()[0], []).append(float(line.split()[1]))
medians = {program: statistics.median(times) for program, times in by.items()}
print("medians", medians)
if len(medians) > 1:
    first, *_, last = medians.values()
    print(f"ratio {first / last:.3f}")
    sys.exit(bool(sys.argv[2]) and first > float(sys.argv[2]) * last)
P
verdict $?
