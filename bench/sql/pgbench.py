"""Runs pgbench on custom scripts and reads its log: latencies, throughput over time, transactions of each script."""
import collections
import glob
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field

from server import HERE

SCRIPTS = os.path.join(HERE, "scripts")
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
BIN = 0.1  # seconds, of the time series


class PgbenchError(Exception):
    """pgbench failed, or transactions did."""


@dataclass
class Outcome:
    transactions: int = 0
    seconds: float = 0.0
    by_script: collections.Counter = field(default_factory=collections.Counter)
    latencies: collections.Counter = field(default_factory=collections.Counter)  # microseconds -> how often
    bins: collections.Counter = field(default_factory=collections.Counter)  # tenth of a second -> transactions
    most_of_a_client: int = 0

    def percentile(self, share):
        return percentile(self.latencies, share)


def percentile(counts, share):
    """Of a histogram value -> count; None when it is empty."""
    left = share * sum(counts.values())
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return None


def run(server, scripts, clients, seed, variables, seconds=None, transactions=None, options=None, log_directory=MEMORY):
    """`scripts` are (file name, weight). Either `seconds`, or `transactions` of all clients together.

    The log has some 40 bytes for each transaction; in memory it does not disturb the disk."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="loosekv-pgbench.", dir=log_directory) as directory:
        command = ["pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, os.cpu_count() or 1)),
                   f"--random-seed={seed}", "--log", f"--log-prefix={directory}/log"]
        for name, weight in scripts:
            command += ["-f", f"{os.path.join(SCRIPTS, name)}.sql@{weight}"]
        for name, value in {"i": 0, "clients": clients, **variables}.items():
            command += ["-D", f"{name}={value}"]
        command += ["-T", str(max(1, round(seconds)))] if seconds else ["-t", str(max(1, transactions // clients))]
        done = subprocess.run(command, env=server.environment(**(options or {})), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _check(done)
        outcome.seconds = _duration(done.stdout)
        for path in glob.glob(f"{directory}/log*"):
            _read_log(path, outcome)
    outcome.transactions = sum(outcome.by_script.values())
    if outcome.transactions == 0:
        raise PgbenchError("no transaction was logged")
    first = min(outcome.bins)
    outcome.bins = collections.Counter({at - first: count for at, count in outcome.bins.items()})
    return outcome


def _check(done):
    failed = re.search(r"number of failed transactions: (\d+)", done.stdout)
    if done.returncode != 0 or not failed or failed.group(1) != "0":
        raise PgbenchError(f"{done.stdout[-400:]}\n{done.stderr[-1200:]}")


def _duration(output):
    """Without connecting, from the rate that pgbench prints."""
    rate = float(re.search(r"tps = ([0-9.]+) \(without", output).group(1))
    processed = int(re.search(r"actually processed: (\d+)", output).group(1))
    return processed / rate


def _read_log(path, outcome):
    latencies, bins, by_script = outcome.latencies, outcome.bins, outcome.by_script
    by_client = collections.Counter()
    with open(path) as file:
        for line in file:
            client, _, latency, script, second, micros = line.split(" ", 5)
            latencies[int(latency)] += 1
            by_script[int(script)] += 1
            by_client[client] += 1
            bins[int(second) * 10 + int(micros) // 100_000] += 1
    outcome.most_of_a_client = max([outcome.most_of_a_client, *by_client.values()])


def series(bins, points=200):
    """(seconds, transactions a second), at most that many points; the last, unfinished bin is left out."""
    if not bins:
        return []
    length = max(bins) + 1
    width = max(1, -(-length // points))
    return [(round((at + width) * BIN, 2), round(sum(bins[b] for b in range(at, at + width)) / (width * BIN), 1))
            for at in range(0, length - width + 1, width)]
