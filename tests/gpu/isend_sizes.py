#!/usr/bin/env python3
"""What NCCL's socket network is given, by the kernel's own uprobe tracer: a line `TID MESSAGES BYTES` for each thread that sends.

Traces ncclNetSocketIsend(comm, data, int size, …) of the library (NCCL up to 2.23) from the moment at which it says `tracing` on standard
error, until --stop-file exists. Ends with 1 if events were lost. Needs root, and tracefs mounted or a mount namespace to mount it in.
"""

import argparse
import collections
import os
import re
import struct
import subprocess
import sys
import tempfile
import time


def file_offset(path, name):
    """Of the function whose mangled name begins so; the library needs its .symtab."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            sys.exit(f"{path}: no 64-bit ELF file")
        segments_at, sections_at = struct.unpack_from("<QQ", head, 32)
        segment_size, segments, section_size, sections = struct.unpack_from("<4H", head, 54)
        file.seek(sections_at)
        headers = [struct.unpack("<IIQQQQIIQQ", file.read(section_size)) for _ in range(sections)]
        file.seek(segments_at)
        loads = [struct.unpack("<IIQQQQQQ", file.read(segment_size)) for _ in range(segments)]
        for _, kind, _, _, at, size, link, *_ in headers:
            if kind != 2:
                continue
            file.seek(headers[link][4])
            names = file.read(headers[link][5])
            file.seek(at)
            for name_at, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", file.read(size)):
                if names[name_at : names.index(b"\0", name_at)].startswith(name):
                    for kind, _, offset, address, _, in_file, *_ in loads:
                        if kind == 1 and address <= value < address + in_file:
                            return value - address + offset
    sys.exit(f"{path}: no symbol {name.decode()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--stop-file", required=True)
    args = parser.parse_args()
    offset = file_offset(args.library, b"_Z18ncclNetSocketIsendPvS_ii")

    tracefs = "/sys/kernel/tracing"
    if not os.path.exists(os.path.join(tracefs, "uprobe_events")):
        tracefs = tempfile.mkdtemp(prefix="ncclflow-tracefs-")
        subprocess.run(["mount", "-t", "tracefs", "tracefs", tracefs], check=True)
    name = f"ncclflow_{os.getpid()}"
    # A buffer of our own: nothing of others is in it.
    instance = os.path.join(tracefs, "instances", name)

    def write(path, text):
        # Not open(…, "w"): that would remove the events of others.
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)

    write(os.path.join(tracefs, "uprobe_events"), f"p:{name}/isend {args.library}:{offset:#x} size=%dx:s32\n")
    sizes, lost = collections.defaultdict(list), 0
    try:
        os.mkdir(instance)
        write(os.path.join(instance, "buffer_size_kb"), "16384")
        pipe = os.open(os.path.join(instance, "trace_pipe"), os.O_RDONLY | os.O_NONBLOCK)
        write(os.path.join(instance, "events", name, "enable"), "1")
        print("tracing", file=sys.stderr, flush=True)
        line = re.compile(rb"-(\d+) +[\[(].* size=(-?\d+)$")
        rest, stopped = b"", False
        while True:
            try:
                read = os.read(pipe, 1 << 16)
            except BlockingIOError:
                if stopped:
                    break
                if os.path.exists(args.stop_file):
                    write(os.path.join(instance, "events", name, "enable"), "0")
                    stopped = True
                time.sleep(0.01)
                continue
            *whole, rest = (rest + read).split(b"\n")
            for text in whole:
                event = line.search(text)
                if event:
                    sizes[int(event[1])].append(int(event[2]))
                elif b"LOST" in text:
                    lost += 1
        os.close(pipe)
    finally:
        if os.path.exists(instance):
            os.rmdir(instance)
        write(os.path.join(tracefs, "uprobe_events"), f"-:{name}/isend\n")
        if tracefs != "/sys/kernel/tracing":
            subprocess.run(["umount", tracefs], check=False)
            os.rmdir(tracefs)
    for thread, of_thread in sorted(sizes.items()):
        print(thread, len(of_thread), sum(of_thread))
    if lost:
        sys.exit("the kernel's tracer lost events")


if __name__ == "__main__":
    main()
