"""docs/performance.md, made of the results of a run (and of a soak)."""
import glob
import os

import report
from server import REPOSITORY

HEAD = """\
# Performance

loosekv beside heap + btree, at the SQL level. This page is made of the results in `{source}` by
`{command}`; change nothing here. What is measured, and how, is in
[bench/sql](../bench/sql/README.md); the engine alone has a [benchmark](../bench/engine/README.md) of its own.

"""
READ = """\
The executor, the protocol and the client cost about the same on both sides. Workload "no table" shows that share: a
statement that makes a key and a value and touches no table, once as it is and once with a transaction to commit. What is above it
is the storage's. Workload "a row by its place" gets rows of heap's by random `ctid`s: one page and no index, a bound for gets beyond
memory.

Machine and settings are those of one run. Cells of other runs, which each group names with their dates, may be of another
machine and of earlier code.

"""
SECOND_OPINION = """\
## Second opinion

Clients that others wrote, with the tables they make, in memory ([how](../bench/sql/README.md#second-opinion)).
"""


def second_opinion():
    """What the scripts of that name have printed."""
    text = SECOND_OPINION
    for path in sorted(glob.glob(os.path.join(REPOSITORY, "bench", "results", "second-opinion", "*.md"))):
        with open(path) as file:
            text += "\n" + file.read()
    return text


def write(results, soak, path):
    label = os.path.basename(results.directory).removeprefix("sql-")
    relative = os.path.relpath(results.directory, REPOSITORY)
    where = os.path.relpath(results.directory, os.path.dirname(path)) + "/"
    command = f"python3 bench/sql docs --label {label}"
    if soak:
        command += f" --soak {os.path.basename(soak.directory).removeprefix('sql-')}"
    text = HEAD.format(source=relative, command=command) + report.METHOD + "\n\n" + READ
    text += f"{report.machine_table(results)}\n## Targets\n\n{report.target_table(results)}\n"
    for group in results.groups():
        text += report.group_text(results, group, where)
    if soak:
        import soak as soak_module
        text += soak_module.text(soak, os.path.relpath(soak.directory, os.path.dirname(path)) + "/")
    text += second_opinion()
    with open(path, "w") as file:
        file.write(text)
    print(f"wrote {os.path.relpath(path)}")
