"""Results on disk: results.jsonl with one line for a run (a cell, a store, a round), and machine.json."""
import json
import os
import platform
import statistics
import subprocess
import time

from schema import STORES


def run_key(record):
    return (record["group"], record["cell"], record["store"], record["round"])


class Results:
    def __init__(self, directory):
        self.directory = directory
        self.path = os.path.join(directory, "results.jsonl")
        self.records, self.machine = [], {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                self.records = [json.loads(line) for line in file if line.strip()]
        if os.path.exists(self._machine_path):
            with open(self._machine_path) as file:
                self.machine = json.load(file)

    @property
    def _machine_path(self):
        return os.path.join(self.directory, "machine.json")

    def keys(self):
        return {run_key(record) for record in self.records}

    def add(self, record):
        self.records.append(record)
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")

    def describe(self, **facts):
        self.machine.update(facts)
        with open(self._machine_path, "w") as file:
            json.dump(self.machine, file, indent=1)
            file.write("\n")

    # Reading.

    def groups(self):
        """Group id -> title, in the order in which they were run."""
        return {record["group"]: record["group_title"] for record in self.records}

    def cells(self, group):
        """Cell ids of a group, in the order in which they were run."""
        return list(dict.fromkeys(record["cell"] for record in self.records if record["group"] == group))

    def of(self, group, cell, store):
        return [record for record in self.records
                if (record["group"], record["cell"], record["store"]) == (group, cell, store)]

    def median(self, group, cell, store, name):
        """Over the rounds; None where it was not measured."""
        values = [record[name] for record in self.of(group, cell, store) if record.get(name) is not None]
        return statistics.median(values) if values else None

    def ratio(self, group, cell, name):
        """Median over the rounds of loosekv by heap, each within its round."""
        by_round = {store: {record["round"]: record.get(name) for record in self.of(group, cell, store)} for store in STORES}
        ratios = [ours / theirs for round, ours in by_round["loosekv"].items()
                  if ours is not None and (theirs := by_round["heap"].get(round))]
        return statistics.median(ratios) if ratios else None


def machine_facts():
    """What the numbers depend on."""
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.processor())
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) // 1024
    version = subprocess.run(["postgres", "--version"], text=True, stdout=subprocess.PIPE).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory": f"{memory} MiB",
        "kernel": platform.release().split("-")[0],
        "server": version,
        "load_before": " ".join(f"{number:.2f}" for number in os.getloadavg()),
    }
