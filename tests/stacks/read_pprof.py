#!/usr/bin/env python3
"""Reads a profile for pprof, as profile.proto describes it, and prints its stacks as JSON: frames from the outermost to the
innermost with function, file and line. Standard library only."""

import gzip
import json
import sys


def fields(data):
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            assert tag & 7 == 2, tag
            length = varint()
            yield tag >> 3, data[at : at + length]
            at += length


def packed(data):
    if isinstance(data, int):
        return [data]
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    return values


def main():
    with gzip.open(sys.argv[1]) as file:
        profile = list(fields(file.read()))
    strings = [value.decode() for field, value in profile if field == 6]
    assert strings[0] == ""
    functions, locations = {}, {}
    for field, value in profile:
        if field == 5:
            function = dict(fields(value))
            functions[function[1]] = strings[function[2]], strings[function.get(4, 0)]
        if field == 4:
            location = dict(fields(value))
            locations[location[1]] = dict(fields(location[4]))
    assert 0 not in functions and 0 not in locations
    stacks = []
    for field, value in profile:
        if field == 2:
            sample = list(fields(value))
            ids = [number for kind, part in sample if kind == 1 for number in packed(part)]
            (count,) = [number for kind, part in sample if kind == 2 for number in packed(part)]
            lines = [locations[number] for number in reversed(ids)]
            frames = [[*functions[line[1]], line.get(2, 0)] for line in lines]
            stacks.append({"frames": frames, "count": count})
    (kind,) = [dict(fields(value)) for field, value in profile if field == 1]
    json.dump({"type": strings[kind[1]], "unit": strings[kind[2]], "stacks": stacks}, sys.stdout)


main()
