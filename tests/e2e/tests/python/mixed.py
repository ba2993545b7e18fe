"""Calls NCCL from Python that C functions have called, and writes down its own stack at each call: Python's frames, and
`qsort` where the C library's stands between them.

usage: mixed.py LIBRARY TRUTH GO
"""

import ctypes
import json
import os
import sys
import threading
import time

LIBRARY, TRUTH, GO = sys.argv[1:4]
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
        truth.write(json.dumps({"n": mine, "tid": threading.get_native_id(), "kind": "mixed", "frames": frames}) + "\n")
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


print("ready", os.getpid(), flush=True)
while not os.path.exists(GO):
    time.sleep(0.01)
# Until it is known where return addresses are, each stack is copied, and some may not be.
for _ in range(40):
    plain()
    time.sleep(0.025)
for _ in range(40):
    plain()
thread = threading.Thread(target=lambda: [(plain(), time.sleep(0.02)) for _ in range(30)])
thread.start()
thread.join()
truth.close()
# Its memory is needed until all stacks are named.
time.sleep(1)
print("done", number, flush=True)
