"""A control group for the whole cluster: a limit on its memory, page cache included, and an exact count of its processor time.

Both versions of control groups are served. Version 1 has a hierarchy for each controller, so a cluster joins several
groups; version 2 has one for all. Without the right to make groups there is no limit, and the meter reads /proc instead.
"""
import os
import time

CPU_FILES = {1: "cpuacct.usage", 2: "cpu.stat"}
LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def _roots():
    """Controller -> (mount point, version), for the controllers that groups can be made of."""
    found = {}
    with open("/proc/mounts") as mounts:
        for line in mounts:
            _, at, kind, options, *_ = line.split()
            if kind == "cgroup":
                for controller in {"memory", "cpuacct"} & set(options.split(",")):
                    found.setdefault(controller, (at, 1))
            elif kind == "cgroup2":
                try:
                    with open(os.path.join(at, "cgroup.subtree_control")) as file:
                        enabled = file.read().split()
                except OSError:
                    continue
                if "memory" in enabled:
                    found.setdefault("memory", (at, 2))
                if "cpu" in enabled:
                    found.setdefault("cpuacct", (at, 2))
    return found


class ControlGroup:
    """The groups of one cluster. `memory` and `cpu` tell whether there is one; `why` tells why there is no memory group."""

    def __init__(self, name):
        self.paths, self.versions, self.why = {}, {}, "no memory controller is mounted"
        for controller, (root, version) in _roots().items():
            path = os.path.join(root, name)
            try:
                os.makedirs(path, exist_ok=True)
                if not os.access(os.path.join(path, "cgroup.procs"), os.W_OK):
                    raise PermissionError(f"{path}/cgroup.procs cannot be written")
            except OSError as error:
                if controller == "memory":
                    self.why = str(error)
                continue
            self.paths[controller], self.versions[controller] = path, version

    @property
    def has_memory(self):
        return "memory" in self.paths

    @property
    def has_cpu(self):
        return "cpuacct" in self.paths

    def describe(self):
        parts = [f"{name} (version {self.versions[name]})" for name in sorted(self.paths)]
        return ", ".join(parts) or "none"

    def directories(self):
        """What a process has to join."""
        return sorted(set(self.paths.values()))

    def limit(self, size):
        """Sets the limit in bytes; None takes it away. A lower one makes the kernel give pages back: that may take a moment."""
        path, version = self.paths["memory"], self.versions["memory"]
        text = str(size) if size is not None else {1: "-1", 2: "max"}[version]
        if version == 2 and os.path.exists(os.path.join(path, "memory.swap.max")):
            self._write(os.path.join(path, "memory.swap.max"), "0")
        for _ in range(600):
            try:
                self._write(os.path.join(path, LIMIT_FILES[version]), text)
                return
            except OSError as error:
                refused = error
                time.sleep(0.1)
        with open(os.path.join(path, "memory.stat")) as file:
            held = {name: int(value) >> 20 for name, value in map(str.split, file) if int(value) >> 20}
        raise RuntimeError(f"a limit of {text} bytes is refused ({refused}); the group holds, in MB: {held}")

    def cpu_ns(self):
        path = os.path.join(self.paths["cpuacct"], CPU_FILES[self.versions["cpuacct"]])
        with open(path) as file:
            if self.versions["cpuacct"] == 1:
                return int(file.read())
            return next(int(line.split()[1]) * 1000 for line in file if line.startswith("usage_usec"))

    def remove(self):
        """The cluster must be gone."""
        for path in self.directories():
            for _ in range(50):
                try:
                    os.rmdir(path)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)

    @staticmethod
    def _write(path, text):
        with open(path, "w") as file:
            file.write(text)
