"""A private cluster with the extension, from scripts/cluster.sh, whole in a control group where the machine allows one."""
import glob
import os
import shutil
import subprocess
import tempfile

from connection import Connection
from control_group import ControlGroup

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.normpath(os.path.join(HERE, "..", ".."))
CLUSTER_SH = os.path.join(REPOSITORY, "scripts", "cluster.sh")

# The shell that starts the server joins the groups first, so that all that the server ever touches is counted.
START = """
for group in $BENCH_GROUPS; do echo $$ >"$group/cgroup.procs" || exit 1; done
. "$0"; "$@"
"""


class Server:
    def __init__(self, port, settings, parent=None):
        self.port = port
        self.directory = tempfile.mkdtemp(prefix="loosekv-bench.", dir=parent or os.environ.get("TMPDIR", "/tmp"))
        os.chmod(self.directory, 0o755)
        self.data = os.path.join(self.directory, "data")
        self.group = ControlGroup(f"loosekv-bench-{os.getpid()}")
        self.settings = settings
        self.connections = []

    def start(self):
        self._shell("cluster_start", self.directory, *(f"{name} = '{value}'" for name, value in self.settings.items()))
        with open(os.path.join(self.data, "postmaster.pid")) as file:
            self.postmaster = int(file.readline())

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def down(self, check=True):
        """Stops it, and leaves it where it is."""
        for connection in self.connections:
            connection.close()
        self.connections = []
        self._shell("cluster_stop", self.directory, check=check)

    def stop(self):
        """Stops it and takes everything away."""
        self.down(check=False)
        self.group.remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _shell(self, *command, check=True):
        environment = dict(os.environ, PGPORT=str(self.port), BENCH_GROUPS=" ".join(self.group.directories()))
        environment.pop("PGOPTIONS", None)
        done = subprocess.run(["bash", "-c", START, CLUSTER_SH, *command], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[:2])}: {done.stdout.strip()}")

    def environment(self, **options):
        """For client programs: where the server is, and the session's settings."""
        given = " ".join(f"-c {name}={value}" for name, value in options.items())
        return dict(os.environ, PGHOST=self.directory, PGPORT=str(self.port), PGUSER="postgres", PGDATABASE="postgres",
                    PGOPTIONS=given)

    def connect(self, **options):
        given = " ".join(f"-c {name}={value}" for name, value in options.items())
        connection = Connection(f"host={self.directory} port={self.port} user=postgres dbname=postgres "
                                f"options='{given}' application_name=bench")
        self.connections.append(connection)
        return connection

    def processes(self):
        """Process id -> title, of the postmaster and its children."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
                if int(entry) != self.postmaster and parent != self.postmaster:
                    continue
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    found[int(entry)] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except (OSError, IndexError):
                continue
        return found

    def files(self, connection, table):
        """The path of the first file of the table and of each of its indexes."""
        rows = connection.rows(f"""
            SELECT pg_relation_filepath(c.oid) FROM pg_class c, pg_class t
            WHERE t.oid = '{table}'::regclass
                AND (c.oid IN (t.oid, t.reltoastrelid) OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = t.oid))""")
        return [os.path.join(self.data, row[0]) for row in rows if row[0]]


def disk_bytes(paths):
    """Bytes of these relations: all forks, all segments."""
    total = 0
    for path in paths:
        for name in [path, *glob.glob(path + "_*"), *glob.glob(path + ".*")]:
            try:
                total += os.stat(name).st_size
            except FileNotFoundError:
                pass
    return total
