#!/usr/bin/env bash
# Who is who, and calls beside ops, in a torch job on real GPUs: GPUs against nvidia-smi, ranks against the environment that the job was
# given, and two probe hits a call.
#
#   tests/gpu/who.sh NAME RANKS [NAME=VALUE …] -- [options of workload.py]
#
# Needs root, GPUs, torch, nvidia-smi, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug).
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh

nvidia-smi --query-gpu=index,pci.bus_id,uuid --format=csv,noheader >"$work/gpus.csv" || exit 1
start_ranks job 29531 200 workload.py "$@"
(sleep 2; touch "$work/go") &
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of job)" -o "$work/out" --strict --level flow --api --job who-test 2>"$work/record.err"; recorded=$?
wait_for 'done' job; wait

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; tail -n 3 "$work/record.err"; failed=1; }
python3 - "$work" "$ranks" "$(pids_of job)" <<'P' || failed=1
import glob, json, sys
work, ranks, pids = sys.argv[1], int(sys.argv[2]), [int(pid) for pid in sys.argv[3].split(",")]
session = json.load(open(f"{work}/out/session.json"))
wrong = []
gpus = {}
for line in open(f"{work}/gpus.csv"):
    index, bus, uuid = (part.strip() for part in line.split(","))
    # nvidia-smi writes eight digits of the domain, the driver four.
    gpus[bus.lower()[-12:]] = (int(index), uuid)
assert len(session["communicators"]) >= ranks, session["communicators"]
for row in session["communicators"]:
    known = gpus.get(row["busId"])
    if known is None or known[1] != row["gpuUuid"] or known[0] != row["nvmlDev"]:
        wrong.append(f"GPU of {row}: nvidia-smi says {gpus}")
    if row["jobRank"] != pids.index(row["pid"]) or row["jobRankSource"] != "RANK" or row["jobName"] != "who-test":
        wrong.append(f"job of {row}")
calls = ops = joined = 0
named = set()
for path in glob.glob(f"{work}/out/*/api_rank*.jsonl"):
    calls += sum(1 for _ in open(path))
for path in glob.glob(f"{work}/out/*/proxy_flow_rank*.jsonl"):
    for line in open(path):
        op = json.loads(line)
        ops += 1
        if op.get("apiCall") is not None:
            joined += 1
            named.add((op["commHash"], op["rank"], op["apiCall"]))
hits = sum(probe["hits"] - probe["disarmed"] for probe in session["probes"] if probe["part"] is None)
print(f"{calls} calls, {hits} hits; {joined} of {ops} ops have a call, {len(named)} calls have ops")
if not calls or not named or hits > 2 * calls + 2 * ranks:
    wrong.append(f"{hits} hits of {calls} calls")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
P
verdict $failed
