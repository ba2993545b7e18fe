#!/usr/bin/env bash
# Python stacks of a recording against those that torch's flight recorder has of the same calls: function, file and line of each frame.
#
#   tests/gpu/stacks.sh NAME RANKS [NAME=VALUE …]
#
# Needs root, GPUs, torch, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug).
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh
start_ranks job 29561 200 stacks_job.py --entries "$work/entries"
(sleep 3; touch "$work/go") &
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of job)" -o "$work/out" --level api --stacks --stack-depth 48 --strict 2>"$work/record.err"; recorded=$?
wait_for 'done' job; wait
failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; tail -n 20 "$work/record.err"; failed=1; }
python3 - "$work" "$ranks" <<'P' || failed=1
import collections, glob, json, sys
work, ranks = sys.argv[1], int(sys.argv[2])
# What torch calls the calls of NCCL that it makes. Of sends and receives it has an entry for each and one for all together.
NAMES = {"all_reduce": "AllReduce", "_all_gather_base": "AllGather", "all_gather_into_tensor": "AllGather", "_reduce_scatter_base": "ReduceScatter",
         "reduce_scatter_tensor": "ReduceScatter", "broadcast": "Broadcast", "send": "Send", "recv": "Recv"}
stacks = {row["stack"]: row for path in glob.glob(f"{work}/out/**/stacks.jsonl", recursive=True) for row in map(json.loads, open(path))}
wrong, compared, left_out = [], collections.Counter(), collections.Counter()
for rank in range(ranks):
    calls = [json.loads(line) for path in glob.glob(f"{work}/out/*/api_rank{rank}.jsonl") for line in open(path)]
    calls.sort(key=lambda call: call["ts_ns"])
    entries = []
    for entry in json.load(open(f"{work}/entries.{rank}")):
        name = entry["profiling_name"].removeprefix("nccl:").split(" ")[0]
        if name in NAMES:
            entries.append((NAMES[name], entry["frames"]))
        else:
            left_out[f"entries of {name}"] += 1
    entries = entries[-len(calls):]
    if len(calls) < 100 or len(entries) != len(calls):
        wrong.append(f"rank {rank}: {len(calls)} calls, {len(entries)} entries")
        continue
    for call, (name, frames) in zip(calls, entries):
        if call["function"] != name:
            wrong.append(f"rank {rank}: {call['function']} is {name} for torch")
            break
        stack = stacks.get(call.get("stack"), {})
        ours = [(frame["function"].split(".")[-1], frame["file"], frame["line"]) for frame in stack.get("frames", [])][::-1]
        theirs = [(frame["name"].split(".")[-1], frame["filename"], frame["line"]) for frame in frames]
        if not theirs and (not ours or stack.get("unknown")):
            left_out["calls of threads without Python's frames"] += 1
        elif ours != theirs:
            at = next((at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
            wrong.append(f"rank {rank}, {name}: {len(ours)} and {len(theirs)} frames; first difference {ours[at:at + 2]} {theirs[at:at + 2]} {stack.get('unknown')}")
        else:
            compared[name] += 1
print("the same:", dict(compared), "left out:", dict(left_out))
print("\n".join(wrong[:10]), f"{len(wrong)} differences")
sys.exit(bool(wrong) or len(compared) < 5)
P
verdict $failed
