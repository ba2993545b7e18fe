"""Calls NCCL in a tight loop, so many Python frames deep; prints the nanoseconds of its processor that a call takes, a
number for each batch.

usage: stacks_bench.py LIBRARY GO FRAMES known|new BATCHES
"""

import ctypes
import os
import sys
import time

LIBRARY, GO, FRAMES, KIND, BATCHES = sys.argv[1:6]
CALLS = 2000
nccl = ctypes.CDLL(LIBRARY)
call = nccl.ncclAllReduce
call.argtypes = [
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
]


def known():
    begin = time.thread_time_ns()
    for _ in range(CALLS):
        call(None, None, 1, 7, 0, None, None)
    return time.thread_time_ns() - begin


def new():
    # Each call is on a line of its own, of code that is made now.
    lines = "\n".join("    call(None, None, 1, 7, 0, None, None)" for _ in range(CALLS))
    scope = {"call": call, "now": time.thread_time_ns}
    exec("def made():\n    begin = now()\n%s\n    return now() - begin\n" % lines, scope)
    return scope["made"]()


def at(depth):
    return at(depth - 1) if depth > 0 else run()


print("ready", os.getpid(), flush=True)
while not os.path.exists(GO):
    time.sleep(0.01)
# The module, what is below, and what calls: three frames, or four with what was made.
below = max(int(FRAMES) - (3 if KIND == "known" else 4), 0)
run = known if KIND == "known" else new
for _ in range(int(BATCHES)):
    print(at(below) / CALLS, flush=True)
    time.sleep(0.02)
# What the kernel has counted is read before this ends.
time.sleep(0.3)
