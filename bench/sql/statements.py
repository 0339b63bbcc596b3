"""The statements of pgbench's scripts, and how the server plans them."""
import os
import re

from connection import SqlError
from pgbench import SCRIPTS


def of_script(name):
    """Its SQL statements, without pgbench's own commands and comments."""
    with open(os.path.join(SCRIPTS, f"{name}.sql")) as file:
        lines = [line for line in file if not line.lstrip().startswith(("\\", "--"))]
    return [part.strip() for part in "".join(lines).split(";") if part.strip()]


def explain(connection, scripts, statement=""):
    """The nodes of the plans, from the top, one text for all statements."""
    plans = []
    for sql in [statement] if statement else [sql for name, _ in scripts for sql in of_script(name)]:
        if sql.upper() in ("BEGIN", "COMMIT"):
            continue
        filled = re.sub(r"(?<!:):([a-z]+)", "1", sql)
        try:
            rows = connection.rows(f"EXPLAIN (COSTS OFF) {filled}")
        except SqlError as error:
            plans.append(str(error))
            continue
        nodes = [row[0].strip().removeprefix("->").strip() for row in rows]
        plans.append(" > ".join(node for node in nodes if ":" not in node))
    return "; ".join(plans)
