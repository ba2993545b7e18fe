"""Calls NCCL in a tight loop, so many Python frames deep; prints the nanoseconds of its processor that a call takes, a
number for each batch.

usage: stacks_bench.py LIBRARY GO FRAMES known|recursive|new BATCHES

Each frame is of another function, but of `recursive`: there one function calls itself.
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


def chain(depth):
    """So many functions, each of which calls the one that was made before it."""
    function = run
    for number in range(depth):
        scope = {"below": function}
        exec(compile("def level_%d():\n    return below()\n" % number, "chain.py", "exec"), scope)
        function = scope["level_%d" % number]
    return function


print("ready", os.getpid(), flush=True)
while not os.path.exists(GO):
    time.sleep(0.01)
# The module, (the function that calls itself,) what is below, and what calls: two frames or three, and one of what was
# made.
run = new if KIND == "new" else known
rest = max(int(FRAMES) - (3 if KIND == "new" else 2), 0)
call_all = (lambda: at(max(rest - 2, 0))) if KIND == "recursive" else chain(rest)
for _ in range(int(BATCHES)):
    print(call_all() / CALLS, flush=True)
    time.sleep(0.02)
# What the kernel has counted is read before this ends.
time.sleep(0.3)
