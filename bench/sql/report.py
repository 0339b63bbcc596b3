"""Tables and plots of results: report.md and SVG files beside results.jsonl."""
import os

import svg
import targets
from schema import STORES
from workloads import WORKLOADS

PERCENTILES = ("p50", "p99", "p999")
METHOD = """\
heap + btree and loosekv take turns within each cell, on one server with one configuration, and again for every round; a
ratio is taken within a round, then the median over the rounds. Ratios are loosekv by heap: above 1 is better for rates,
below 1 for processor time and bytes. Processor time is the server's, of all processes, background included; of cells that
write it counts until nothing goes on in the background and a checkpoint is done, as bytes do. Latencies are in milliseconds."""


def number(value, digits=3):
    """Readable, with that many digits that matter."""
    if value is None:
        return ""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.{max(digits - 2, 0)}f}"
    if size >= 1 or size == 0:
        return f"{value:.{max(digits - 1, 0)}f}"
    return f"{value:.{digits}f}"


def table(head, rows, left=1):
    """A Markdown table; the first `left` columns are words."""
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in [head, marks, *rows]) + "\n"


class Cell:
    """The medians of one cell, by store."""

    def __init__(self, results, group, cell):
        self.results, self.group, self.id = results, group, cell
        self.any = next(record for record in results.records if (record["group"], record["cell"]) == (group, cell))

    def median(self, store, name):
        return self.results.median(self.group, self.id, store, name)

    def ratio(self, name):
        return self.results.ratio(self.group, self.id, name)

    def sides(self, name, unit=1.0):
        """Heap's, loosekv's, their ratio, as text."""
        values = [self.median(store, name) for store in STORES]
        return [*(number(value / unit if value is not None else None) for value in values), number(self.ratio(name))]

    @property
    def floor(self):
        return self.any["store"] == "none"

    @property
    def compares(self):
        return not self.floor and not WORKLOADS[self.any["workload"]].only

    @property
    def writes(self):
        return WORKLOADS[self.any["workload"]].writes

    @property
    def label(self):
        more = "" if self.any["sync"] == "off" else ", sync"
        return f"{self.any['workload']} {self.any['clients']}{more}"

    def latency(self, store):
        values = [self.median(store, name) for name in PERCENTILES]
        if not any(values):
            return ""
        return " / ".join(number(value / 1000) if value is not None else "-" for value in values)


def cells_of(results, group):
    return [Cell(results, group, cell) for cell in results.cells(group)]


def speed_table(cells):
    rows = []
    for cell in cells:
        if cell.floor:
            rows.append([cell.any["title"], cell.any["clients"], cell.any["sync"], cell.any["unit"],
                         number(cell.median("none", "rate")), "", "", number(cell.median("none", "cpu_us")), "", "",
                         cell.latency("none"), ""])
            continue
        rows.append([cell.any["title"], cell.any["clients"], cell.any["sync"], cell.any["unit"], *cell.sides("rate"),
                     *cell.sides("cpu_us"), *(cell.latency(store) for store in STORES)])
    head = ["workload", "clients", "sync", "unit", "heap / s", "loosekv / s", "ratio",
            "CPU us, heap", "CPU us, loosekv", "ratio", "p50 / p99 / p99.9, heap", "loosekv"]
    return table(head, rows)


def bytes_table(cells):
    rows = []
    for cell in cells:
        if not cell.compares or not cell.writes:
            continue
        base = cell.any["row_bytes"]
        row = [cell.any["title"], cell.any["clients"], cell.any["sync"]]
        row += cell.sides("wal") + cell.sides("written")
        written = cell.median("loosekv", "written")
        row.append(number(written / base) if written is not None else "")
        row += cell.sides("size", 1e6) + cell.sides("size_peak", 1e6) + cell.sides("vacuum_us")[:2]
        rows.append(row)
    head = ["workload", "clients", "sync", "WAL B, heap", "loosekv", "ratio", "written B, heap", "loosekv", "ratio", "x row",
            "MB at rest, heap", "loosekv", "ratio", "MB at most, heap", "loosekv", "ratio", "VACUUM us, heap", "loosekv"]
    return table(head, rows) if rows else ""


def cpu_table(cells):
    """Where loosekv takes more of the server's processor time than heap, the worst first."""
    slower = sorted(((cell.ratio("cpu_us"), cell) for cell in cells if cell.compares and (cell.ratio("cpu_us") or 0) > 1),
                    key=lambda pair: -pair[0])
    rows = []
    for ratio, cell in slower:
        background = cell.results.of(cell.group, cell.id, "loosekv")[-1]["background_us"].get("worker", 0)
        rows.append([cell.any["title"], cell.any["clients"], cell.any["sync"], number(cell.median("heap", "cpu_us")),
                     number(cell.median("loosekv", "cpu_us")), number(cell.median("loosekv", "cpu_us_run")), number(background),
                     number(ratio)])
    head = ["workload", "clients", "sync", "heap us", "loosekv us", "until the last answer", "of it the worker", "ratio"]
    return table(head, rows) if rows else ""


def target_table(results):
    rows = []
    for verdict in targets.judge(results):
        word = {True: "hit", False: "**missed**", None: "not measured"}[verdict.hit]
        rows.append([verdict.group, verdict.what, verdict.wanted, number(verdict.found), word])
    return table(["where", "what", "wanted", "found", ""], rows, left=2)


def machine_table(results):
    rows, names = [], {"others_cores_median": "cores used by others, median", "others_cores_most": "cores used by others, most"}
    for name, value in results.machine.items():
        if not isinstance(value, dict):
            rows.append([names.get(name, name.replace("_", " ")), value])
    return table(["", ""], rows)


def settings_text(results, group):
    settings = results.machine.get(f"settings of {group}", {})
    return f"Server: {', '.join(f'{name} = {value}' for name, value in settings.items())}.\n"


def runs_text(results, group):
    """By which commands the cells were measured, when, and what a round trip between two processes took there."""
    cells = {}
    for record in results.records:
        if record["group"] == group and record.get("run"):
            key = (record["date"], record["run"], record.get("round_trip_us"))
            cells.setdefault(key, {})[record["workload"]] = None
    lines = [f"- {date}, {f'round trip {trip:g} us, ' if trip else ''}`python3 bench/sql {run}`: {', '.join(names)}"
             for (date, run, trip), names in cells.items()]
    return "Measured by\n\n" + "\n".join(lines) + "\n\n" if lines else ""


def plans_text(cells):
    """Where the two sides are planned differently, or not by an index."""
    lines = []
    for cell in cells:
        if not cell.compares:
            continue
        plans = [next((record["plan"] for record in cell.results.of(cell.group, cell.id, store) if record.get("plan")), None)
                 for store in STORES]
        if plans[0] and plans[0] != plans[1]:
            lines.append(f"- {cell.any['title']}: heap `{plans[0]}`; loosekv `{plans[1]}`")
    return "Planned differently:\n\n" + "\n".join(lines) + "\n" if lines else ""


def file_name(group, what):
    return f"{what}-{group.replace('/', '-')}.svg"


def write_plots(results, group, cells):
    """Bars of ratios, and throughput over time of the inserts. The names of the files."""
    names = []
    bars = [(cell.label, [cell.ratio("rate"), inverse(cell.ratio("cpu_us"))]) for cell in cells if cell.compares]
    if bars:
        names.append(file_name(group, "ratios"))
        text = svg.ratio_bars(f"loosekv by heap + btree: {results.groups()[group]}", ("rate", "processor time saved"), bars)
        save(results, names[-1], text)
    bars = [(cell.label, [inverse(cell.ratio("written")), inverse(cell.ratio("wal"))]) for cell in cells
            if cell.compares and cell.writes]
    if bars:
        names.append(file_name(group, "bytes"))
        text = svg.ratio_bars(f"Bytes saved: {results.groups()[group]}", ("bytes written", "WAL"), bars, most=64.0)
        save(results, names[-1], text)
    for cell in cells:
        if cell.any.get("series") and cell.any["workload"] in ("insert", "insert-100") and cell.id.endswith("/off"):
            rows = WORKLOADS[cell.any["workload"]].rows
            named = {store: [(x, y * rows) for x, y in record["series"]]
                     for store in STORES for record in results.of(group, cell.id, store)[:1]}
            names.append(file_name(group, "time-" + cell.id.replace("/", "-")))
            save(results, names[-1], svg.lines(f"{cell.any['title']}: {results.groups()[group]}", "rows/s", "seconds", named))
    return names


def inverse(value):
    return 1 / value if value else None


def save(results, name, text):
    with open(os.path.join(results.directory, name), "w") as file:
        file.write(text)


def group_text(results, group, where=""):
    cells = cells_of(results, group)
    text = f"## {results.groups()[group]}\n\n{cells[0].any['base_rows']:,} rows. {settings_text(results, group)}\n"
    text += f"{runs_text(results, group)}{speed_table(cells)}\n"
    found = bytes_table(cells)
    if found:
        text += ("Bytes for each row, from the first row until the server is idle; size of table and indexes; processor time, "
                 f"for each row, of a VACUUM afterwards, which is not in the numbers above:\n\n{found}\n")
    found = cpu_table(cells)
    if found:
        text += f"Where loosekv takes more processor time than heap:\n\n{found}\n"
    text += plans_text(cells)
    for name in write_plots(results, group, cells):
        text += f"\n![{name.removesuffix('.svg')}]({where}{name})\n"
    return text + "\n"


def write(results):
    label = os.path.basename(results.directory).removeprefix("sql-")
    text = f"# SQL benchmark {label}\n\n{METHOD}\n\n{machine_table(results)}\n## Targets\n\n{target_table(results)}\n"
    for group in results.groups():
        text += group_text(results, group)
    save(results, "report.md", text)
