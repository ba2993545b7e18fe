#!/usr/bin/env bash
# Windows of N training iterations of a job with torch's DistributedDataParallel: each has N times the collectives of an iteration, which a
# recording of the whole training tells.
#
#   tests/gpu/iterations.sh NAME RANKS ITERATIONS [NAME=VALUE …]
#
# Needs root, GPUs, torch, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug). N (default 5). The training must
# last longer than the windows, 12 s: 2,500 iterations or more on two H100s.
set -uo pipefail
cd "$(dirname "$0")/../.."
numbers=(iterations)
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh
train() { start_ranks "$1" 29541 280 ddp.py --iters "$iterations"; }

train whole
(sleep 2; touch "$work/go") &
"$programs/ncclflow" record -p "$(pids_of whole)" -o "$work/all" --strict --files none 2>"$work/all.err" || { cat "$work/all.err"; verdict 1; }
wait_for seconds whole; wait
"$programs/ncclflow" export "$work/all" -f jsonl -o "$work/all.lines" >/dev/null || verdict 1

train windows
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of windows)" -o "$work/out" --strict --window-flag "$work/flag" --window-iterations "${N:-5}" 2>"$work/record.err" &
recorder=$!
sleep 2; touch "$work/go"
for _ in 1 2 3; do sleep 1; touch "$work/flag"; sleep 2; rm "$work/flag"; done
wait_for seconds windows; wait $recorder; recorded=$?; wait

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; tail -n 20 "$work/record.err"; failed=1; }
python3 - "$work" "$iterations" "${N:-5}" "$ranks" <<'P' || failed=1
import glob, json, sys
work, iterations, wanted, ranks = sys.argv[1], *map(int, sys.argv[2:])
calls = lambda path: len({json.loads(line)["seq"] for line in open(path)})
whole = [calls(path) for path in glob.glob(f"{work}/all.lines/*/proxy_flow_rank*.jsonl")]
print(f"the whole training: {whole} collectives in {iterations} iterations")
per_iteration, rest = divmod(whole[0], iterations)
wrong = [] if len(set(whole)) == 1 and rest == 0 and len(whole) == ranks else ["they are not the same in each iteration and rank"]
for window in json.load(open(f"{work}/out/session.json"))["windows"]:
    found = window["iterations"]
    counts = [calls(path) for path in glob.glob(f"{work}/out/{window['folder']}/*/*/proxy_flow_rank*.jsonl")]
    print(f"window {window['number']}: {counts} collectives, closed by {window['closed_by']}, {found}")
    if not found["found"] or counts != [wanted * per_iteration] * ranks:
        wrong.append(f"window {window['number']} does not have {wanted} iterations of {per_iteration} collectives")
print("\n".join(wrong))
sys.exit(bool(wrong))
P
verdict $failed
