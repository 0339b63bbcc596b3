"""What the benchmark computes from what it reads: percentiles, series, ratios, verdicts, plots."""
import os
import tempfile
import unittest
from collections import Counter
from xml.etree import ElementTree

import instructions
import pgbench
import plan
import schema
import soak
import statements
import survey
import svg
import targets
from results import Results
from workloads import WORKLOADS


def record(group, cell, store, round, **more):
    return {"group": group, "group_title": group, "cell": cell, "store": store, "round": round, **more}


class Logs(unittest.TestCase):
    def test_log_is_counted(self):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            for at in range(10):
                file.write(f"{at % 2} {at} {100 * (at + 1)} {at % 2} 1700000000 {at * 100000}\n")
            file.flush()
            outcome = pgbench.Outcome()
            pgbench._read_log(file.name, outcome)
        self.assertEqual(outcome.by_script, {0: 5, 1: 5})
        self.assertEqual(outcome.percentile(0.5), 500)
        self.assertEqual(outcome.percentile(0.999), 1000)
        self.assertEqual(outcome.most_of_a_client, 5)
        self.assertEqual(len(outcome.bins), 10)

    def test_series_is_a_rate(self):
        bins = Counter({at: 7 for at in range(400)})
        points = pgbench.series(bins, points=100)
        self.assertEqual(len(points), 100)
        self.assertTrue(all(rate == 70 for _, rate in points))

    def test_tenths_and_gap(self):
        bins = Counter({at: 10 if at < 90 else 5 for at in range(100) if not 40 <= at < 43})
        shares = soak.tenths(bins, 1)
        self.assertAlmostEqual(shares[0], 100)
        self.assertAlmostEqual(shares[9], 50)
        self.assertAlmostEqual(soak.longest_gap(bins), 0.3)


class Counts(unittest.TestCase):
    def test_a_call_counts_where_it_was_spent(self):
        with tempfile.NamedTemporaryFile("w", suffix=".callgrind") as file:
            file.write("version: 1\npositions: line\nevents: Ir I1mr\nsummary: 118 3\n\n"
                       "ob=(1) /lib/postgres\nfl=(1) a.c\nfn=(1) main\n7 10 2\n+1 5\n"
                       "cob=(2) /lib/loosekv.so\ncfi=(2) b.rs\ncfn=(2) get\ncalls=3 9\n-1 103 1\n* 0 0\n\n"
                       "ob=(2)\nfl=(2)\nfn=(2)\n9 103 1\ntotals: 118 3\n")
            file.flush()
            counts = instructions.read_counts(file.name)
        self.assertEqual(counts, {("Ir", "postgres"): 15, ("Ir", "loosekv.so"): 103, ("Ir", "all"): 118,
                                  ("I1mr", "postgres"): 2, ("I1mr", "loosekv.so"): 1, ("I1mr", "all"): 3})


class Verdicts(unittest.TestCase):
    def results(self, *records):
        with tempfile.TemporaryDirectory() as directory:
            results = Results(directory)
            for one in records:
                results.add(one)
            return Results(directory)

    def test_ratio_is_taken_within_rounds(self):
        results = self.results(
            record("g", "get/2/off", "heap", 0, rate=10.0), record("g", "get/2/off", "loosekv", 0, rate=20.0),
            record("g", "get/2/off", "heap", 1, rate=100.0), record("g", "get/2/off", "loosekv", 1, rate=300.0),
            record("g", "get/2/off", "heap", 2, rate=1.0))
        self.assertEqual(results.ratio("g", "get/2/off", "rate"), 2.5)

    def test_targets_are_judged(self):
        runs = (("upsert/8/off", "heap", 10.0, 1000.0), ("upsert/8/off", "loosekv", 30.0, 150.0),
                ("get/8/off", "heap", 10.0, 0.0), ("get/8/off", "loosekv", 13.0, 0.0))
        results = self.results(*(record(targets.COLD, cell, store, 0, rate=rate, written=written)
                                 for cell, store, rate, written in runs))
        found = {(verdict.group, verdict.what): verdict.hit for verdict in targets.judge(results)}
        self.assertTrue(found[targets.COLD, "upsert"])
        self.assertFalse(found[targets.COLD, "upsert: bytes written"])
        self.assertFalse(found[targets.COLD, "get"])
        self.assertIsNone(found[targets.COLD, "miss"])

    def test_targets_are_those_of_the_usual_clients(self):
        """Whichever cells stand before theirs."""
        results = self.results(*(record(targets.COLD, cell, store, 0, rate=rate)
                                 for cell, rates in (("get/2/off", (1, 3)), ("get/8/on", (1, 4)), ("get/8/off", (2, 1)))
                                 for store, rate in zip(("heap", "loosekv"), rates)))
        found = {(verdict.group, verdict.what): verdict.found for verdict in targets.judge(results)}
        self.assertEqual(found[targets.COLD, "get"], 0.5)

    def test_targets_name_cells_of_the_plan(self):
        cells = {group.id: {cell.workload for cell in group.cells} for group in plan.long()}
        for target in targets.TARGETS:
            self.assertIn(target.workload, cells[target.group], target)


class Pieces(unittest.TestCase):
    def test_scripts_are_there_and_have_statements(self):
        for workload in WORKLOADS.values():
            for name, _ in workload.scripts:
                self.assertTrue(statements.of_script(name), name)
        used = {name for workload in WORKLOADS.values() for name, _ in workload.scripts}
        self.assertEqual(used, {name.removesuffix(".sql") for name in os.listdir(pgbench.SCRIPTS)})

    def test_survey_has_cases(self):
        tables, cases = survey.cases()
        self.assertTrue(tables.count("CREATE TABLE") > 3 and len(cases) > 40)
        self.assertEqual(len({case.title for case in cases}), len(cases))
        for case in cases:
            self.assertTrue(case.title and case.timed, case.title)

    def test_pool_is_the_same_every_time(self):
        self.assertEqual(schema.pool(64), schema.pool(64))
        self.assertEqual(len(schema.pool()), schema.POOL_BYTES)

    def test_plots_are_xml(self):
        bars = svg.ratio_bars("a < b", ("rate", "bytes"), [("get", [2.0, None]), ("put", [0.01, 100.0])])
        for text in (bars, svg.lines("t", "rows/s", "s", {"heap": [(0, 1), (1, 2)]})):
            ElementTree.fromstring(text)
        self.assertEqual(bars.count("<title>"), 3)


if __name__ == "__main__":
    unittest.main()
