"""Says its own stack, and waits until somebody else has looked at it.

Each line that it writes is JSON: the thread's number and the frames outside of `check`, innermost first, each with
function, file, line and qualified name (null where CPython has none). Then it reads one byte and goes on.
"""

import asyncio
import functools
import json
import os
import random
import sys
import threading

LIMIT = 600


def check(name):
    frame = sys._getframe(1)
    frames = []
    while frame is not None and len(frames) < LIMIT:
        code = frame.f_code
        frames.append([code.co_name, code.co_filename, frame.f_lineno, getattr(code, "co_qualname", None)])
        frame = frame.f_back
    told = {"case": name, "thread": threading.get_native_id(), "frames": frames}
    os.write(1, json.dumps(told).encode() + b"\n")
    os.read(0, 1)


def plain(depth):
    if depth:
        return plain(depth - 1)
    check("plain")


def nested():
    value = [1]

    def outer():
        def inner():
            value.append(2)
            check("nested")
        inner()
    outer()


def generators():
    def numbers():
        yield 1
        check("generator")
        yield 2

    def passing():
        yield from numbers()

    for _ in passing():
        pass
    list(check("generator expression") for _ in range(2))
    [check("comprehension") for _ in range(2)]
    {n: check("dict comprehension") for n in range(2)}


def lambdas():
    (lambda: check("lambda"))()
    sorted([2, 1], key=lambda value: check("sort key") or value)
    list(map(lambda value: (
        check("map"),
        value,
    ), [1]))
    functools.reduce(lambda a, b: check("reduce") or a, [1, 2])


def decorated_once(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper


class Decorator:
    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)


@decorated_once
@Decorator
@decorated_once
def decorated(*args):
    check("decorated")


class Special:
    @property
    def value(self):
        check("property")

    def __enter__(self):
        check("enter")

    def __exit__(self, *args):
        check("exit")

    def __getattr__(self, name):
        check("getattr")
        return name

    def __lt__(self, other):
        check("less")
        return True

    def __del__(self):
        check("del")

    @classmethod
    def of_class(cls):
        super(Special, cls).__init__
        check("class method")

    @staticmethod
    def of_none():
        check("static method")


def specials():
    special = Special()
    special.value
    with special:
        check("with")
    special.anything
    sorted([special, special])
    special.of_class()
    special.of_none()
    del special

    class Body:
        check("class body")

    class Meta(type):
        def __new__(mcs, *args):
            check("metaclass")
            return super().__new__(mcs, *args)

    class WithMeta(metaclass=Meta):
        pass


def exceptions():
    try:
        raise ValueError
    except ValueError:
        check("except")
    finally:
        check("finally")
    try:
        try:
            [][1]
        finally:
            check("finally while raised")
    except IndexError as error:
        check("except as")


def long_calls():
    return max(
        1,

        2,
        (lambda a, b:

            check("argument") or 3
         )(1,
           2),
        *[
            check("argument again") or 4
            for _ in range(1)
        ],
    )


async def coroutines():
    async def inner():
        check("coroutine")
        await asyncio.sleep(0)
        check("coroutine after await")

    async def numbers():
        yield 1
        check("async generator")
        yield 2

    class Context:
        async def __aenter__(self):
            check("async enter")

        async def __aexit__(self, *args):
            check("async exit")

    await inner()
    async for _ in numbers():
        check("async for")
    async with Context():
        pass
    await asyncio.gather(inner(), inner())


def compiled(generator):
    """Code that is compiled, called once and dropped, so that its memory is used again."""
    gaps = ["\n" * generator.choice([0, 1, 2, 40, 126, 127, 128, 254, 255, 256, 700]) for _ in range(6)]
    words = ["x = 1", "x = (1,\n\n 2)", "for x in [1]: x", "y = {'a': 1,\n 'b': [2,\n3]}", "pass"]
    filler = lambda: "\n".join("    " + generator.choice(words) for _ in range(generator.randrange(40)))
    name = "f_%s_%d" % (generator.choice("äxЖ界😀"), generator.randrange(10**6)) if generator.random() < 0.3 else "f"
    name = name.replace("😀", "z")
    source = (
        f"{gaps[0]}import sys\n{gaps[1]}def {name}(check):\n{filler()}\n{gaps[2]}\n"
        f"    z = ({gaps[3]}1, check('compiled'),{gaps[4]} 2)\n{filler()}\n    return z\n"
        f"{gaps[5]}{name}(check)\n"
    )
    file = "/made/%s%d.py" % (generator.choice(["plain", "zwölf", "界", "😀"]), generator.randrange(10**6))
    exec(compile(source, file, "exec"), {"check": check})


def in_threads():
    def work(number):
        plain(number)

    ready = threading.Event()
    idle = [threading.Thread(target=ready.wait) for _ in range(3)]
    for thread in idle:
        thread.start()
    for number in range(3):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()
    ready.set()
    for thread in idle:
        thread.join()


def deep():
    sys.setrecursionlimit(5000)
    try:
        plain(700)
        plain(510 - 3)
    finally:
        sys.setrecursionlimit(1000)


class Importer:
    """A module that is imported from text: frames of importlib, which are frozen."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        import importlib.machinery
        if name == "made_module":
            return importlib.machinery.ModuleSpec(name, Importer)

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        check("import")


def imported():
    sys.modules.pop("made_module", None)
    import made_module


def main():
    rounds, seed = int(sys.argv[1]), int(sys.argv[2])
    generator = random.Random(seed)
    sys.meta_path.insert(0, Importer)
    for round in range(rounds):
        plain(generator.randrange(60))
        for case in (nested, generators, lambdas, specials, exceptions, long_calls, imported):
            case()
        decorated(1, 2)
        for _ in range(8):
            compiled(generator)
        if round % 10 == 0:
            asyncio.run(coroutines())
            in_threads()
        if round % 20 == 0:
            deep()
        eval("check('eval')")
        exec("check('exec')")


main()
check("module")
