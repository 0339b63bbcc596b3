#!/usr/bin/env python3
"""Compares what psql or isolationtester printed for the same script on heap and on loosekv.

    compare.py EXPLAINED HEAP_DIRECTORY LOOSEKV_DIRECTORY NAME...

Two things count as equal without being said:
- the rows of a result whose statement has no ORDER BY, in whatever order they come;
- plans (the planner has other access paths there; regress/sql/planner.sql is about them).

Every other line that differs has to match a rule of the file EXPLAINED, else the test fails. A rule is

    NAME  REGULAR-EXPRESSION

under a comment that says why; NAME may be a shell pattern. A rule for a file (not one for a pattern of names) that was compared,
and that explained nothing, fails too: it is to be taken out.
"""
import difflib
import fnmatch
import re
import sys

RULE = re.compile(r"^-[-+]*$")
FOOTER = re.compile(r"^\(\d+ rows?\)$")
ORDERED = re.compile(r"order\s+by", re.IGNORECASE)
PLAN = re.compile(r"^ *(QUERY PLAN|explain_\w+) *$")
MARK = re.compile(r"^psql:[^ ]*:\d+: ")


class Item:
    """A line, or a whole result; equal items have equal `same`."""

    def __init__(self, lines, same, at):
        self.lines, self.same, self.at = lines, same, at


def items_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [MARK.sub("", line.rstrip("\n")) for line in file]
    items, statement, at = [], [], 0
    while at < len(lines):
        end = result_end(lines, at)
        if end is None:
            items.append(Item([lines[at]], lines[at], at))
            statement.append(lines[at])
            at += 1
            continue
        block = lines[at:end]
        if PLAN.match(lines[at]):
            same = "(plan)"
        else:
            rows = block[2:-1]
            ordered = ORDERED.search("\n".join(statement))
            same = "\n".join(block[:2] + (rows if ordered else sorted(rows)) + block[-1:])
        items.append(Item(block, same, at))
        statement = []
        at = end
    return items


def result_end(lines, at):
    """The line after the result whose header is at `at`; None if there is no result."""
    if at + 1 >= len(lines) or not RULE.match(lines[at + 1]) or len(lines[at]) < len(lines[at + 1]) - 1:
        return None
    for end in range(at + 2, len(lines)):
        if FOOTER.match(lines[end]):
            return end + 1
        if lines[end].startswith(("ERROR:", "--")) or lines[end].endswith(";"):
            return None
    return None


def differences(heap, loosekv):
    """Groups of lines that differ, as (line number, [(sign, line)]): - is heap's, + is loosekv's."""
    matcher = difflib.SequenceMatcher(None, [i.same for i in heap], [i.same for i in loosekv], autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        left = [line for item in heap[a:b] for line in item.lines]
        right = [line for item in loosekv[c:d] for line in item.lines]
        if sorted(left) == sorted(right):
            lines = [("+", "(the same lines in another order)")]
        else:
            changes = difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
            lines = [("-", line) for kind, i, j, _, _ in changes if kind != "equal" for line in left[i:j]]
            lines += [("+", line) for kind, _, _, i, j in changes if kind != "equal" for line in right[i:j]]
        yield (heap[a].at + 1 if a < len(heap) else 0), lines


def rules_of(path):
    rules = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if line.strip() and not line.startswith("#"):
                name, _, pattern = line.partition("  ")
                rules.append([name, re.compile(pattern.strip()), number, 0])
    return rules


def main(explained, heap_dir, loosekv_dir, names):
    rules, failed = rules_of(explained), []
    for name in names:
        mine = [rule for rule in rules if fnmatch.fnmatch(name, rule[0])]
        for rule in mine:
            if rule[0] == name:
                rule[3] |= 2  # compared: it has to explain something
        groups = list(differences(items_of(f"{heap_dir}/{name}.out"), items_of(f"{loosekv_dir}/{name}.out")))
        excused, left = 0, []
        for at, lines in groups:
            unexplained = []
            for sign, line in lines:
                rule = next((rule for rule in mine if rule[1].search(line)), None)
                if rule is None:
                    unexplained.append((sign, line))
                else:
                    rule[3] |= 1
                    excused += 1
            if unexplained:
                left.append((at, unexplained))
        if left:
            failed.append(name)
            print(f"differs  {name}")
            for at, lines in left[:40]:
                print(f"    at line {at}:")
                for sign, line in lines[:12]:
                    print(f"      {'heap   ' if sign == '-' else 'loosekv'} {line}")
        else:
            print(f"ok       {name}" + (f" ({excused} explained lines)" if excused else ""))
    stale = [rule for rule in rules if rule[3] == 2]
    for rule in stale:
        print(f"rule that explains nothing: {explained}:{rule[2]}: {rule[0]}  {rule[1].pattern}")
    print(f"{len(names) - len(failed)} the same, {len(failed)} differ{': ' + ' '.join(failed) if failed else ''}")
    return not failed and not stale


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(0 if main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]) else 1)
