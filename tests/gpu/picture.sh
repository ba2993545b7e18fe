#!/usr/bin/env bash
# Makes the README's picture of `dump`: of a job on real GPUs that hangs over NVLink, with GPU lines.
#
#   tests/gpu/picture.sh NAME RANKS FOLDER [NAME=VALUE …]
#
# Needs root, GPUs with NVLink, torch, and a release build of ncclflow in $NCCLFLOW_PROGRAMS (default target/release). The text is put
# into FOLDER/dump.txt, and where there is cargo the picture into FOLDER/dump.svg.
#
#   tests/gpu/picture.sh picture 4 docs/images
set -uo pipefail
cd "$(dirname "$0")/../.."
folder=$3
set -- "$1" "$2" "${@:4}"
. tests/gpu/arguments.sh
programs=$(realpath "${NCCLFLOW_PROGRAMS:-target/release}")
. tests/gpu/job.sh
failed=0
fail() { echo "FAILED: $name: $*"; failed=1; }
trap kill_ranks EXIT
mkdir -p "$folder"

absent=$((ranks - 1))
start_ranks hang 29519 300 workload.py --iters 6 --ops allreduce --elements 1048576 --absent "$absent@3"
pids=$(pids_of hang)
touch "$work/go"
wait_for absent hang 1
sleep 5
"$programs/ncclflow" dump -p "$pids" --color always >"$folder/dump.txt" 2>"$work/dump.err"
[ $? = 3 ] || fail "dump: $(cat "$work/dump.err")"
grep -q "rank $absent has not joined" "$folder/dump.txt" || fail "dump does not name rank $absent"
grep -q 'NVLink' "$folder/dump.txt" || fail "dump has no line of a GPU"
if command -v cargo >/dev/null; then
    cargo xtask make picture --title "ncclflow dump" -o "$folder/dump.svg" <"$folder/dump.txt" || fail "the picture"
fi
kill_ranks

verdict $failed
