#!/usr/bin/env bash
# Small all-reduces back to back, recorded into a folder with a limit that is reached again and again: no record is lost, the folder never
# takes more, and what is left are the latest ops, up to the job's last one.
#
#   tests/gpu/limit.sh NAME RANKS [NAME=VALUE …] -- [options of flood.py]
#
# Needs root, GPUs, torch's NCCL, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug). LIMIT (default 8M).
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh

start_ranks job 29531 200 flood.py "$@"
(sleep 2; touch "$work/go") &
"$programs/ncclflow" record -p "$(pids_of job)" -o "$work/out" --strict --max-size "${LIMIT:-8M}" 2>"$work/record.err" &
recorder=$!
most=0
while kill -0 $recorder 2>/dev/null; do
    used=$(du -s --block-size=1 "$work/out" 2>/dev/null | cut -f1)
    [ "${used:-0}" -gt $most ] && most=$used
    sleep 0.05
done
wait $recorder; recorded=$?
wait_for 'done' job

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; tail -n 20 "$work/record.err"; failed=1; }
# All of it would be gigabytes of lines.
"$programs/ncclflow" export "$work/out" -f jsonl --last "${LAST:-0.2s}" --exact -o "$work/made" || failed=1
python3 - "$work" "$most" <<'P' || failed=1
import glob, json, sys
work, most = sys.argv[1], int(sys.argv[2])
session = json.load(open(f"{work}/out/session.json"))
recording, limit, loss = session["recording"], session["max_size"]["bytes"], session["loss"]
seconds = (session["clock"]["ended_monotonic_ns"] - session["clock"]["started_monotonic_ns"]) / 1e9
print(f"{recording['records']} records, {recording['records'] / seconds:.0f} a second, {recording['bytes'] / recording['records']:.2f} bytes each; "
      f"{recording['removed_segments']} segments removed; at most {most} of {limit} bytes; lines: {session['files']['state']}")
wrong = [f"{name}: {count}" for name, count in loss.items() if count]
if most > limit:
    wrong.append(f"the folder took {most} bytes")
if not recording["removed_records"]:
    wrong.append("the limit was not reached")
counts = {line.split()[1] for path in glob.glob(f"{work}/job.*.out") for line in open(path) if line.startswith("done")}
for path in glob.glob(f"{work}/made/*/proxy_flow_rank*.jsonl"):
    seen = sorted({json.loads(line)["seq"] for line in open(path)})
    # NCCL counts collectives in steps of 2.
    gaps = [at for at in range(1, len(seen)) if seen[at] != seen[at - 1] + 2]
    print(f"{path.rsplit('/', 1)[1]}: {len(seen)} ops, {seen[0]} to {seen[-1]}")
    if {str(seen[-1] // 2 + 1)} != counts or gaps:
        wrong.append(f"{path}: the last op is {seen[-1]} of {counts} calls; gaps at {gaps[:5]}")
print("\n".join(wrong))
sys.exit(bool(wrong))
P
verdict $failed
