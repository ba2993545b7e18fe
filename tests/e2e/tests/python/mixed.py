"""Calls NCCL from Python that C functions have called, and writes down its own stack at each call: Python's frames, and
`qsort` where the C library's stands between them.

usage: mixed.py LIBRARY TRUTH GO [told]

told: each of its two threads calls slowly until there is a file beside GO that says that its stacks are known: `main`, then
`worker`. What the first one calls from then on, until it has another place, is marked as `known`.
"""

import ctypes
import json
import os
import sys
import threading
import time

LIBRARY, TRUTH, GO = sys.argv[1:4]
IS_TOLD = len(sys.argv) > 4
nccl = ctypes.CDLL(LIBRARY)
nccl.ncclAllReduce.argtypes = [
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
]
libc = ctypes.CDLL(None)
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
libc.qsort.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, COMPARE]
libc.qsort.restype = None
lock = threading.Lock()
truth = open(TRUTH, "w")
number = 0
is_known = False


def note(frame):
    global number
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        # A comparison is called by nobody but qsort.
        if code.co_name.startswith("compare"):
            frames.append(["qsort", "", 0])
        frame = frame.f_back
    frames.reverse()
    with lock:
        number += 1
        mine = number
        line = {"n": mine, "tid": threading.get_native_id(), "kind": "mixed", "known": is_known, "frames": frames}
        truth.write(json.dumps(line) + "\n")
    return mine


def call():
    nccl.ncclAllReduce(None, None, note(sys._getframe()), 7, 0, None, None)


@COMPARE
def compare(a, b):
    call()
    return 0


@COMPARE
def compare_and_sort(a, b):
    sort(compare)
    return 0


def sort(how):
    values = (ctypes.c_int * 2)(1, 2)
    libc.qsort(values, 2, 4, how)


class Lesser:
    def __lt__(self, other):
        call()
        return False


def generator():
    for _ in range(2):
        sort(compare)
        yield


def recurse(depth):
    if depth:
        recurse(depth - 1)
    else:
        sort(compare)


def plain():
    call()
    sort(compare)
    sort(compare_and_sort)
    list(generator())
    sorted([Lesser(), Lesser()])
    list(map(lambda _: sort(compare), range(2)))
    recurse(5)
    (lambda: call())()


def is_told(what):
    return not IS_TOLD or os.path.exists(os.path.join(os.path.dirname(GO), what))


def work():
    turn = 0
    while turn < 30 or not is_told("worker"):
        plain()
        turn += 1
        time.sleep(0.02)


print("ready", os.getpid(), flush=True)
while not os.path.exists(GO):
    time.sleep(0.01)
# Until it is known where return addresses are, each stack is copied, and some may not be. Then all are called from the same
# place, at once.
turn, left = 0, 40
while left > 0:
    plain()
    turn += 1
    if is_known:
        left -= 1
    else:
        time.sleep(0.025)
        is_known = turn >= 40 and is_told("main")
is_known = False
# From another place, so that the stacks are new.
for _ in range(40):
    plain()
thread = threading.Thread(target=work)
thread.start()
thread.join()
truth.close()
# Its memory is needed until all stacks are named.
time.sleep(1)
print("done", number, flush=True)
