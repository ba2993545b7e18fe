#!/usr/bin/env bash
# The history that is read from memory against torch's own dump of its flight recorder, of the same processes at the same time: every entry, its frames,
# process groups and their status. Then one rank stays away, and the history names it.
#
#   tests/gpu/history.sh NAME RANKS [NAME=VALUE …]
#
# Needs root, GPUs, torch, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug). Torch before 2.11 takes notes with
# TORCH_NCCL_TRACE_BUFFER_SIZE=2000 only.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh
trap kill_ranks EXIT
start_ranks job 29571 200 history_job.py --entries "$work/entries" --leave "$work/leave"
touch "$work/go"
wait_for still job
pids=$(pids_of job)
started=$(date +%s%N)
"$programs/ncclflow" history -p "$pids" --json >"$work/history.json" 2>"$work/history.err"; code=$?
echo "read in $((($(date +%s%N) - started) / 1000000)) ms"
"$programs/ncclflow" history -p "$pids" --last 5 >"$work/history.txt" 2>&1
touch "$work/leave"
wait_for absent job
sleep 3
"$programs/ncclflow" history -p "$pids" >"$work/late.txt" 2>&1; late=$?
"$programs/ncclflow" dump -p "$pids" >"$work/dump.txt" 2>&1
failed=0
[ $code = 0 ] || { echo "ncclflow history ended with $code: $(head -c 600 "$work/history.err")"; failed=1; }
head -n 30 "$work/history.txt"
[ $late = 5 ] || { echo "with a rank away it ended with $late"; failed=1; }
head -n 1 "$work/late.txt" | grep -q "rank $((ranks - 1)) has not called collective" || { echo "the rank that is away is not named:"; head -n 12 "$work/late.txt"; failed=1; }
grep "torch's flight recorder" "$work/dump.txt" || { echo "the dump has nothing of torch's flight recorder:"; head -n 20 "$work/dump.txt"; failed=1; }
python3 - "$work" "$ranks" <<'P' || failed=1
import collections, json, sys
work, ranks = sys.argv[1], int(sys.argv[2])
SAME = {"recordId": "record_id", "pgId": "pg_id", "collectiveSeqId": "collective_seq_id", "p2pSeqId": "p2p_seq_id", "opId": "op_id",
        "profilingName": "profiling_name", "inputSizes": "input_sizes", "inputDtypes": "input_dtypes", "outputSizes": "output_sizes",
        "outputDtypes": "output_dtypes", "state": "state", "timeCreatedNs": "time_created_ns", "timeDiscoveredStartedNs": "time_discovered_started_ns",
        "timeDiscoveredCompletedNs": "time_discovered_completed_ns", "timeoutMs": "timeout_ms", "isP2p": "is_p2p", "retired": "retired",
        "threadName": "thread_name", "durationMs": "duration_ms"}
history = json.load(open(f"{work}/history.json"))
wrong, compared = [], collections.Counter()
if history["verdict"]["state"] != "agree":
    wrong.append(f"{history['verdict']}")
for rank in range(ranks):
    torch = json.load(open(f"{work}/entries.{rank}"))
    process = next((one for one in history["processes"] if one["rank"] == rank), None)
    if not process or process["notes"].get("unknown"):
        wrong.append(f"rank {rank} is not there: {[(one['rank'], (one['notes'] or {}).get('unknown')) for one in history['processes']]}")
        continue
    notes = process["notes"]
    if notes["torch"] != torch["torch"]:
        wrong.append(f"rank {rank}: {notes['torch']} is {torch['torch']}")
    if rank == 0:
        print(f"torch {torch['torch']}, in the table as {'run' if notes['layoutsWereRun'] else 'not run'}")
    ring = next(ring for ring in notes["rings"] if ring["backend"] != "gloo")
    ours, theirs = ring["entries"], torch["entries"]
    if len(ours) != len(theirs) or ring["torn"] or len(ours) < 100:
        wrong.append(f"rank {rank}: {len(ours)} entries and {ring['torn']} torn; torch has {len(theirs)}")
    for our, their in zip(ours, theirs):
        for key, name in SAME.items():
            if our[key] != their.get(name):
                wrong.append(f"rank {rank}, entry {their['record_id']}, {name}: {our[key]!r} is {their.get(name)!r}")
            compared[name] += 1
        if our["processGroup"] != list(their["process_group"]) or str(our["threadId"]) != their.get("thread_id", "None"):
            wrong.append(f"rank {rank}, entry {their['record_id']}: {our['processGroup']} {our['threadId']} is {their['process_group']} {their.get('thread_id')}")
        frames = [(frame["function"], frame["file"], frame["line"]) for frame in our["frames"] or []]
        expected = [(frame["name"], frame["filename"], frame["line"]) for frame in their["frames"]]
        if frames != expected and [(one[0].split(".")[-1], *one[1:]) for one in expected] != frames:
            wrong.append(f"rank {rank}, entry {their['record_id']}: frames {frames[:3]} are {expected[:3]}")
        compared["frames"] += len(frames)
    groups = {group["name"]: group for group in ring["groups"]}
    for name, group in torch["pg_config"].items():
        own = groups.get(name, {})
        if str(own.get("ranks")) != group["ranks"] or own.get("description") != group["desc"]:
            wrong.append(f"rank {rank}, group {name}: {own} is {group}")
        compared["groups"] += 1
    status = {str(group["pgId"]): group["status"] for group in groups.values() if group["status"]}
    for number, their in torch["pg_status"].items():
        if number in status:
            own = [status[number][work]["seq"] for work in ("lastEnqueued", "lastStarted", "lastCompleted")]
            if own != [their[f"last_{work}_collective"] for work in ("enqueued", "started", "completed")]:
                wrong.append(f"rank {rank}, group number {number}: {own} is {their}")
            compared["status"] += 1
print("the same:", dict(compared))
print("\n".join(wrong[:20]), f"{len(wrong)} differences")
sys.exit(bool(wrong) or len(compared) < 20)
P
verdict $failed
