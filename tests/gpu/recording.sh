#!/usr/bin/env bash
# Records a torch job on real GPUs, and exports the recording: the files must be the same, byte for byte. Says how many bytes a launch takes.
#
#   tests/gpu/recording.sh NAME RANKS [NAME=VALUE …] -- [options of workload.py]
#
# Needs root, GPUs, torch, and ncclflow in $NCCLFLOW_PROGRAMS (default target/debug). LEVEL=steps measures.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/debug}")
. tests/gpu/job.sh

start_ranks job 29521 200 workload.py "$@"
(sleep 2; touch "$work/go") &
"$programs/ncclflow" record --files-limit 1T -p "$(pids_of job)" -o "$work/out" --strict --level "${LEVEL:-flow}" 2>"$work/record.err"; recorded=$?
wait_for 'done' job; wait

failed=0
[ $recorded = 0 ] || { echo "ncclflow ended with $recorded"; failed=1; }
"$programs/ncclflow" export "$work/out" -f jsonl -o "$work/again" || failed=1
diff -rq --exclude recording "$work/out" "$work/again" || { diff "$work/out/gpus.jsonl" "$work/again/gpus.jsonl" | head -n 4; echo "the export makes other files"; failed=1; }
python3 - "$work/out" <<'P'
import json, sys
session = json.load(open(f"{sys.argv[1]}/session.json"))
kept = session["recording"]
print(f"{kept['records']} records in {kept['bytes']} bytes and {kept['blocks']} blocks: {kept['bytes'] / max(1, kept['records']):.1f} bytes a record")
P
du -sb "$work/out/recording" "$work/out" | sed "s|$work/||"
verdict $failed
