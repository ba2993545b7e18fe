"""Calls NCCL from every kind of Python code, and writes down its own stack at each call.

usage: stacks.py LIBRARY TRUTH GO [STACKS]

STACKS: the file of stacks of whoever records it. Code that is to be named stays until it is there by its name.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import os
import sys
import threading
import time
import traceback
import types

LIBRARY, TRUTH, GO = sys.argv[1:4]
STACKS = sys.argv[4] if len(sys.argv) > 4 else None
nccl = ctypes.CDLL(LIBRARY)
nccl.ncclAllReduce.argtypes = [
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
]
lock = threading.Lock()
truth = open(TRUTH, "w")
number = 0
# For how long code stays after its last call, so that it can be named, where nothing tells that it is.
PAUSE = 1.0
# For how long it is waited for otherwise.
NAMED_WITHIN = 120.0
kind = "plain"


def name_of(code):
    return getattr(code, "co_qualname", code.co_name)


def note(frame):
    """Writes the caller's stack down, outermost first; gives the number of the call."""
    global number
    frames = [[name_of(frame.f_code), frame.f_code.co_filename, line] for frame, line in traceback.walk_stack(frame)]
    frames.reverse()
    with lock:
        number += 1
        mine = number
        truth.write(json.dumps({"n": mine, "tid": threading.get_native_id(), "kind": kind, "frames": frames}) + "\n")
    return mine


def wait_until_named(functions):
    if STACKS is None:
        return time.sleep(PAUSE)
    names = ['"%s"' % function.__name__ for function in functions]
    end = time.monotonic() + NAMED_WITHIN
    while time.monotonic() < end:
        time.sleep(0.05)
        if os.path.exists(STACKS):
            with open(STACKS) as file:
                text = file.read()
            if all(name in text for name in names):
                return


def call():
    # The stack is noted on the line of the call: frames have one line at a time.
    nccl.ncclAllReduce(None, None, note(sys._getframe()), 7, 0, None, None)


def nested(depth):
    def inner():
        def innermost():
            call()

        innermost()

    if depth:
        nested(depth - 1)
    else:
        inner()


def generator(n):
    for i in range(n):
        call()
        yield i


def delegating(n):
    yield from generator(n)
    call()


def decorator(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        call()
        return function(*arguments)

    return wrapper


@decorator
@decorator
def decorated(n):
    call()
    return n


class Thing:
    @property
    def value(self):
        call()
        return 1

    @classmethod
    def make(cls):
        call()
        return cls()

    def __call__(self):
        call()

    def __lt__(self, other):
        call()
        return False

    def __del__(self):
        call()


@contextlib.contextmanager
def context():
    call()
    yield
    call()


def exceptions():
    try:
        raise ValueError
    except ValueError:
        call()
    finally:
        call()


def several_lines():
    call(); call()
    return [
        call(),
        call(),
        (
            call()
        ),
    ]


KEPT = compile("call()\n\n\ncall()", "kept.py", "exec")


def plain():
    nested(3)
    list(generator(3))
    list(delegating(2))
    (lambda: (lambda: call())())()
    decorated(1)
    Thing().value
    Thing.make()()
    sorted([Thing(), Thing()])
    [call() for _ in range(2)]
    {call() for _ in range(2)}
    list(call() for _ in range(2))
    list(map(lambda _: call(), range(2)))
    functools.reduce(lambda a, _: (call(), a)[1], range(3))
    with context():
        call()
    exceptions()
    several_lines()

    class Body:
        call()

    exec(KEPT)


def recurse(depth):
    if depth == 0:
        return call()
    return recurse(depth - 1)


async def leaf(n):
    call()
    await asyncio.sleep(0)
    call()
    return n


async def branch():
    await asyncio.gather(*(leaf(i) for i in range(3)))
    async for _ in ticks():
        call()


async def ticks():
    for i in range(2):
        call()
        yield i


def compiled(round, keep):
    """Functions that are alike but for their names and lines, at addresses that were others'."""
    functions = []
    for i in range(40):
        scope = {"call": call}
        name = "made_%03d_%02d" % (round, i)
        exec(compile("\n" * (i % 7) + "def %s():\n" % name + "\n" * (i % 3) + "    call()\n", "made.py", "exec"), scope)
        functions.append(scope[name])
        if not keep:
            functions.pop()()
    for function in functions:
        function()
        function()
    if keep:
        wait_until_named(functions)


def renamed(intern):
    """Functions that are alike but for their names, each with its code and its name where those of the one before were."""
    scope = {"call": call}
    exec(compile("def made():\n    call()\n", "made.py", "exec"), scope)
    code = scope["made"].__code__
    for i in range(20):
        # Not interned: strings that are put together here.
        name = intern("other_%02d" % i)
        names = {"co_name": name, "co_qualname": name} if hasattr(code, "co_qualname") else {"co_name": name}
        made = types.FunctionType(code.replace(**names), scope)
        made()
        time.sleep(0.1)
        del made, names, name
        # Without the GIL code goes only when it is collected.
        gc.collect()


def at_the_end():
    call()


def worker(rounds):
    for _ in range(rounds):
        plain()
        recurse(5)


print("ready", os.getpid(), flush=True)
while not os.path.exists(GO):
    time.sleep(0.01)

# How often all of it is done.
rounds, made = (40, 6) if os.environ.get("NCCLFLOW_LONG") else (15, 3)
for i in range(rounds):
    plain()
    recurse(i)
    recurse(23 - i % 3)
    recurse(200)
    asyncio.run(branch())
threads = [threading.Thread(target=worker, args=(rounds,)) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
# What was made and is no more has addresses that others have, now.
time.sleep(PAUSE)
kind = "kept"
for i in range(made):
    compiled(i, True)
kind = "dropped"
for i in range(6, 6 + made):
    compiled(i, False)
renamed(sys.intern)
renamed(str)
if STACKS:
    # All that was called before is named or gone when this is named.
    kind = "plain"
    at_the_end()
    wait_until_named([at_the_end])
truth.close()
print("done", number, flush=True)
# Its memory is needed until all stacks are named.
time.sleep(2 * PAUSE)
