# shellcheck shell=bash disable=SC2034
# NAME RANKS [NAME=VALUE …] [-- OPTION …], for the scripts beside it, which source it without arguments of its own: it reads
# theirs. Sets `name`, `ranks` and `environment`, and leaves the options.

name=$1 ranks=$2
shift 2
environment=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do environment+=("$1"); shift; done
[ $# -gt 0 ] && shift
