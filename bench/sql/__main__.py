"""SQL benchmark: heap + btree and loosekv side by side. See README.md."""
import argparse
import os
import signal
import sys
from dataclasses import replace

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import plan  # noqa: E402 the path comes first
import quiet  # noqa: E402
import runner  # noqa: E402
from results import Results, machine_facts  # noqa: E402
from server import REPOSITORY  # noqa: E402

RESULTS = os.path.join(REPOSITORY, "bench", "results")


def words(text):
    return [word for word in text.split(",") if word]


def parse(arguments):
    parser = argparse.ArgumentParser(prog="bench/sql", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run the suite and make the report")
    run.add_argument("--form", choices=plan.FORMS, default="long", help="wide is the whole product of everything")
    run.add_argument("--groups", type=words, help="ids of groups or their beginnings, as --list shows them")
    run.add_argument("--workloads", type=words)
    run.add_argument("--clients", type=words, help="each pgbench workload with these numbers of clients")
    run.add_argument("--syncs", type=words, help="each pgbench workload with these settings of synchronous_commit")
    run.add_argument("--rounds", type=int)
    run.add_argument("--rows", type=int, help="of the tables, instead of the group's own number")
    run.add_argument("--scale", type=float, default=1.0, help="factor for the work of each cell")
    run.add_argument("--setting", action="append", default=[], metavar="REGIME:NAME=VALUE",
                     help="of the server; without a regime for all of them")
    run.add_argument("--keep-memory", action="store_true",
                     help="keep a virtual machine's free memory from its host, by a setting of the kernel that is put back at the end")
    run.add_argument("--list", action="store_true", help="show groups and cells, run nothing")
    add_common(run)

    report = commands.add_parser("report", help="make tables and plots of results again")
    report.add_argument("--out", required=True)

    docs = commands.add_parser("docs", help="make docs/performance.md of results")
    docs.add_argument("--label", required=True)
    docs.add_argument("--soak", help="label of a soak's results")
    docs.add_argument("--to", default=os.path.join(REPOSITORY, "docs", "performance.md"))

    crossover = commands.add_parser("crossover", help="which part of a table the planner reads by index, and whether it should")
    crossover.add_argument("--rows", type=int, default=1_000_000)
    crossover.add_argument("--rounds", type=int, default=3)
    add_common(crossover)

    counted = commands.add_parser("instructions", help="the server's instructions for a statement, counted by callgrind")
    counted.add_argument("--workloads", type=words, default=["get", "miss", "insert", "upsert", "update", "queue", "limit-100"])
    counted.add_argument("--rows", type=int, default=200_000)
    counted.add_argument("--transactions", type=int, default=2000)
    add_common(counted)

    restart = commands.add_parser("restart", help="how long a key index is not whole after a restart, with pages of keys and without")
    restart.add_argument("--rows", type=int, default=5_000_000)
    restart.add_argument("--value", type=int, default=256)
    restart.add_argument("--rounds", type=int, default=3)
    add_common(restart)

    survey = commands.add_parser("survey", help="statements of many kinds, timed once on each side in turn")
    survey.add_argument("--rounds", type=int, default=3)
    survey.add_argument("--only", metavar="PATTERN", help="cases whose titles match")
    survey.add_argument("--rest", type=float, default=10, help="seconds between the load and the first case")
    add_common(survey)

    soak = commands.add_parser("soak", help="inserts for a long time: pauses, and throughput by tenths")
    soak.add_argument("--minutes", type=float, default=30)
    soak.add_argument("--rows-per-statement", type=int, choices=(1, 100), default=1)
    soak.add_argument("--soak-clients", type=int, default=2)
    soak.add_argument("--stores", type=words, default=["loosekv", "heap"])
    soak.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    soak.add_argument("--value", type=int, default=256)
    add_common(soak)
    return parser.parse_args(arguments)


def add_common(parser):
    parser.add_argument("--label", help="names the results: bench/results/sql-LABEL")
    parser.add_argument("--resume", action="store_true", help="go on with the results of that label")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PGPORT", "57433")))
    parser.add_argument("--dir", help="where the cluster is made")


def narrowed(group, options):
    """The group with what the options ask for."""
    cells = [cell for cell in group.cells if not options.workloads or cell.workload in options.workloads]
    for name in ("clients", "syncs"):
        values = getattr(options, name)
        if values:
            attribute, convert = {"clients": ("clients", int), "syncs": ("sync", str)}[name]
            cells = [cell if cell.workload in plan.ONE_CLIENT else replace(cell, **{attribute: convert(value)})
                     for cell in cells for value in values]
    settings = dict(group.regime.settings)
    for given in options.setting:
        name, value = given.split("=", 1)
        regime, _, name = name.rpartition(":")
        if regime in ("", group.regime.name):
            settings[name] = value
    amounts = group.amounts
    if options.scale != 1:
        transactions = {name: max(16, int(count * options.scale)) for name, count in amounts.transactions.items()}
        amounts = replace(amounts, transactions=transactions, seconds=amounts.seconds * options.scale,
                          mixed_seconds=amounts.mixed_seconds * options.scale)
    return replace(group, cells=tuple(dict.fromkeys(cells)), rows=options.rows or group.rows, amounts=amounts,
                   regime=replace(group.regime, settings=settings))


def run_suite(options):
    groups = [narrowed(group, options) for group in plan.FORMS[options.form]()
              if not options.groups or any(group.id.startswith(name) for name in options.groups)]
    groups = [group for group in groups if group.cells]
    if options.list:
        for group in groups:
            print(f"{group.id} ({group.title}, {group.rows} rows)")
            print("   " + " ".join(cell.id for cell in group.cells))
        return
    rounds = options.rounds or plan.ROUNDS[options.form]
    results = open_results(options, options.label or options.form)
    sizes = {group.id: group.rows for group in groups}
    for record in results.records:
        if sizes.get(record["group"], record["base_rows"]) != record["base_rows"]:
            sys.exit(f"{record['group']} has results of {record['base_rows']} rows under this label: take another label, or --rows {record['base_rows']}")
    results.describe(form=options.form, **machine_facts())
    with quiet.memory(options.keep_memory), quiet.cores() as kept:
        options.round_trip_us = quiet.round_trip_us()
        results.describe(cores_kept_awake="yes" if kept else "no", round_trip_us=options.round_trip_us,
                         free_memory_kept_from_the_host="yes" if options.keep_memory else "no")
        runner.run(groups, rounds, results, options)
    make_report(results)


def open_results(options, label):
    directory = os.path.join(RESULTS, f"sql-{label}")
    if os.path.exists(os.path.join(directory, "results.jsonl")) and not options.resume:
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
    os.makedirs(directory, exist_ok=True)
    return Results(directory)


def make_report(results):
    import report
    report.write(results)
    print(f"see {os.path.relpath(results.directory)}/report.md")


def main():
    options = parse(sys.argv[1:])
    # Whatever ends it, the servers that it started are stopped.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # Server programs and clients are of the same installation.
    config = os.environ.get("PG_CONFIG", "/usr/lib/postgresql/15/bin/pg_config")
    os.environ["PATH"] = os.path.dirname(config) + os.pathsep + os.environ["PATH"]
    if options.command == "run":
        run_suite(options)
    elif options.command == "report":
        make_report(Results(options.out))
    elif options.command == "docs":
        import docs
        docs.write(Results(os.path.join(RESULTS, f"sql-{options.label}")),
                   Results(os.path.join(RESULTS, f"sql-{options.soak}")) if options.soak else None, options.to)
    elif options.command == "crossover":
        import crossover
        crossover.run(options)
    elif options.command == "restart":
        import restart
        restart.run(options)
    elif options.command == "survey":
        import survey
        survey.run(options)
    elif options.command == "instructions":
        import instructions
        instructions.run(options)
    else:
        import soak
        soak.run(options, open_results(options, options.label or "soak"))


main()
