#!/usr/bin/env bash
# Dumps a torch job on real GPUs: one in which a rank does not join, and one that is busy.
#
#   tests/gpu/hang.sh NAME RANKS [NAME=VALUE …]
#
# Needs root, GPUs, torch, and a release build of ncclflow in $NCCLFLOW_PROGRAMS (default target/release). First the last rank
# stays away: the verdict must be `stuck` and name it and no other, the exit code 3, and the scan no slower than 0.5 s for 2 GB.
# Then $DUMPS (default 20) dumps of the running job: none may say `stuck`, and the results are those of the job alone.
#
#   tests/gpu/hang.sh nvlink 2
#   tests/gpu/hang.sh net 2 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
. tests/gpu/job.sh
absent=$((ranks - 1)) failed=0

fail() { echo "FAILED: $name: $*"; failed=1; }
trap kill_ranks EXIT

start() { # mode; then options of the workload
    local mode=$1; shift
    start_ranks "$mode" 29517 300 workload.py "$@"
    pids=$(pids_of "$mode")
    touch "$work/go"
}

check() { # file of a dump, its exit code, the rank that is absent
    python3 - "$@" <<'PYTHON'
import json, sys
path, code, absent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dump, wrong = json.load(open(path)), []
stuck = [c for c in dump["communicators"] if c["verdict"]["state"] == "stuck"]
if code != 3 or not stuck:
    wrong.append(f"exit code {code}, verdicts {[c['verdict'] for c in dump['communicators']]}")
for communicator in stuck:
    print("\n".join("  " + sentence for sentence in communicator["verdict"]["evidence"]))
    if communicator["verdict"]["culprits"] != [absent]:
        wrong.append(f"culprits {communicator['verdict']['culprits']}, not [{absent}]")
for process in dump["processes"]:
    scan = process["scan"]
    # Nothing is searched where a list of the communicators could be followed.
    per_2_gb = scan["milliseconds"] * (2 << 30) / scan["scannedBytes"] if scan["scannedBytes"] else 0
    calls = [(t["name"], t["ncclApi"], t["ncclFunction"]) for t in process["threads"]]
    print(f"  process {process['pid']}: {scan['scannedBytes'] >> 20} of {scan['mappedBytes'] >> 20} MiB in "
          f"{scan['milliseconds']} ms ({per_2_gb:.0f} ms for 2 GB); in NCCL: {calls}")
    if scan["milliseconds"] > 500 and per_2_gb > 500:
        wrong.append(f"the scan of process {process['pid']} took {scan['milliseconds']} ms")
print("\n".join(wrong))
sys.exit(bool(wrong))
PYTHON
}

echo "$name: rank $absent of $ranks does not join"
start hang --iters 6 --ops allreduce --elements 1048576 --absent "$absent@3"
wait_for absent hang 1
sleep 3
started=$(date +%s%N)
"$programs/ncclflow" dump -p "$pids" --json --stacks >"$work/hang.json" 2>"$work/hang.err"; code=$?
echo "  the whole dump took $((($(date +%s%N) - started) / 1000000)) ms, two pauses of 500 ms between readings in it"
check "$work/hang.json" "$code" "$absent" || fail "the verdict on the hang"
"$programs/ncclflow" dump --all --json >"$work/all.json" 2>"$work/all.err"; code=$?
check "$work/all.json" "$code" "$absent" >"$work/all.txt" || { cat "$work/all.txt"; fail "--all"; }
kill_ranks

options=(--iters 400 --ops allreduce,allgather,reducescatter --elements 4194304)
echo "$name: $ranks ranks, busy"
start alone "${options[@]}"; wait_for 'done' alone; kill_ranks
start busy "${options[@]}"
stuck=0 dumps=0
while [ "$dumps" -lt "${DUMPS:-20}" ] && ! grep -q '^done' "$work"/busy.*.out; do
    "$programs/ncclflow" dump -p "$pids" --json --interval 0.2 >"$work/busy.json" 2>"$work/busy.err"
    [ $? = 3 ] && ! grep -q '^done' "$work"/busy.*.out && { stuck=$((stuck + 1)); cp "$work/busy.json" "$work/busy-$stuck.json"; }
    dumps=$((dumps + 1))
done
wait_for 'done' busy
echo "  $dumps dumps, $stuck of them said stuck"
[ "$stuck" = 0 ] && [ "$dumps" -gt 0 ] || fail "dumps of the busy job"
[ "$(said 'done' alone)" = "$(said 'done' busy)" ] || fail "the job's results differ"
said 'done' busy | grep -vq '^wrong 0 ' && fail "the job's results are wrong"
kill_ranks
verdict $failed
