"""Compares what `ncclflow symbols --json` says of a library with what GDB reads of it.

    ncclflow symbols --json LIBRARY > said.json
    SAID=said.json gdb -q -batch -x compare.py LIBRARY

Prints a line for each difference, and counts at the end. A type of one name that two files define in other ways is GDB's
first; a stack place is written by each in its own way and counts as other.
"""

import json
import os
import re

import gdb

REGISTERS = "rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15".split()


def members(kind, base=0, prefix=""):
    """Name and bit offset of each member, those of unnamed members and bases included."""
    for field in kind.fields():
        if not hasattr(field, "bitpos"):
            continue
        if field.name is None or field.is_base_class:
            yield from members(field.type.strip_typedefs(), base + field.bitpos, prefix)
        else:
            yield prefix + field.name, base + field.bitpos, field.bitsize


def type_of(name):
    for word in (name, f"struct {name}"):
        try:
            return gdb.lookup_type(word).strip_typedefs()
        except gdb.error:
            pass
    return None


def layouts(said, counts):
    for name, layout in sorted(said["structs"].items()):
        kind = type_of(name)
        if kind is None:
            counts["unknown"] += 1
            continue
        if kind.sizeof != layout["size"]:
            counts["other"] += 1
            print("size", name, layout["size"], kind.sizeof)
            continue
        known = {member: (bits, size) for member, bits, size in members(kind)}
        for member in layout["members"]:
            bits, size = known.get(member["name"], (None, 0))
            if bits is None:
                counts["unknown"] += 1
            elif bits == 8 * member["offset"] or size:
                counts["same"] += 1
            else:
                counts["other"] += 1
                print("offset", name, member["name"], member["offset"], bits / 8)


def place_at(scope, name, address):
    """Where GDB has a parameter at an address."""
    found = re.search(rf"Symbol {re.escape(name)} is (.*?)(?=\nSymbol|\Z)", scope, re.S)
    text = found.group(1) if found else "not there"
    ranges = re.findall(r"Range (0x[0-9a-f]+)-(0x[0-9a-f]+): (.*?)(?=\n\s+Range|\Z)", text, re.S)
    if ranges:
        hit = [what for begin, end, what in ranges if int(begin, 16) <= address < int(end, 16)]
        text = hit[0] if hit else "nowhere"
    return " ".join(text.split())


def functions(said, counts):
    for name, copies in sorted(said.items()):
        for copy in copies:
            address = copy["vaddr"]
            symbol = gdb.execute(f"info symbol {address:#x}", to_string=True).split()[0]
            # Exported functions have a second name, `pncclAllReduce`.
            is_it = re.split(r"[.(]", symbol)[0].split("::")[-1].removeprefix("p") == name.removeprefix("p")
            counts["same" if is_it else "other"] += 1
            if not is_it:
                print("function", name, hex(address), symbol)
            scope = gdb.execute(f"info scope *{address:#x}", to_string=True)
            for parameter in copy["params"]:
                ours = parameter["location"]
                theirs = place_at(scope, parameter["name"], address + copy["uprobeOffset"])
                register = f"${REGISTERS[ours['register']]}" if "register" in ours else None
                if register and re.search(rf"in (register )?\{register}\b", theirs):
                    counts["same"] += 1
                else:
                    counts["other"] += 1
                    print("place", name, parameter["name"], register or json.dumps(ours), copy["paramsFrom"], "|", theirs[:90])


with open(os.environ["SAID"], encoding="utf-8") as file:
    SAID = json.load(file)
COUNTS = {"same": 0, "other": 0, "unknown": 0}
layouts(SAID["layouts"], COUNTS)
functions(SAID["functions"], COUNTS)
print(SAID["symbolSource"], SAID["layoutsFrom"], COUNTS)
