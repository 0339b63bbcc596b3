#!/usr/bin/env python3
"""Logical replication campaign: a subscriber gets every change of heap's and loosekv's tables, whatever is killed meanwhile.

    logical.py [SECONDS [SEED]]
"""
import os
import random
import sys
import time

import lib

# Of a table without a key the whole row tells which one it is.
WHOLE_ROWS = [f"ALTER TABLE {t}3 REPLICA IDENTITY FULL" for t in "hl"]
TABLES = [f"{t}{n}" for t in "hl" for n in "123"]
ORDERS = {"1": "k", "2": "a, b", "3": "k, s, v"}


def digest(server):
    """What the tables hold, whatever the order of their rows on disk."""
    return {t: server.sql(f"SELECT count(*), md5(string_agg(x::text, ',' ORDER BY {ORDERS[t[1]]})) FROM {t} x") for t in TABLES}


def catch_up(publisher, subscriber, patience=300):
    """Waits until the subscriber has all that has been committed."""
    end = publisher.sql("SELECT pg_logical_emit_message(true, 'campaign', 'end')", "CHECKPOINT", "SELECT pg_current_wal_lsn()").splitlines()[-1]
    deadline = time.monotonic() + patience
    while publisher.sql(f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'twins'") != "t":
        if time.monotonic() > deadline:
            raise lib.Failure(f"the subscriber does not catch up: {subscriber.log_tail()}\n{publisher.log_tail()}")
        time.sleep(0.1)


def settled(subscriber, patience=120):
    """Waits until every table has been copied."""
    deadline = time.monotonic() + patience
    while subscriber.sql("SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'") != "0":
        if time.monotonic() > deadline:
            raise lib.Failure(f"tables are not copied: {subscriber.log_tail()}")
        time.sleep(0.1)


def change_much(publisher, patience=60):
    """A transaction that goes to disk before it is decoded. The server may just be falling, or come back."""
    deadline = time.monotonic() + patience
    while publisher.try_sql(";".join(f"UPDATE {t}1 SET n = n + 1 WHERE k BETWEEN 2000000 AND 2003000" for t in "hl")).returncode != 0:
        if time.monotonic() > deadline:
            raise lib.Failure(f"the publisher does not come back: {publisher.log_tail()}")
        time.sleep(0.1)


def same(publisher, subscriber):
    catch_up(publisher, subscriber)
    for server in (publisher, subscriber):
        lib.verify(server)
    here, there = digest(publisher), digest(subscriber)
    wrong = [f"{t}: {here[t]} published, {there[t]} here" for t in TABLES if here[t] != there[t]]
    if wrong:
        raise lib.Failure("the subscriber has other rows: " + "; ".join(wrong))


def described(publisher):
    """pg_walinspect shows what the records of changes say."""
    start = publisher.sql("CREATE EXTENSION pg_walinspect", "SELECT pg_current_wal_lsn()").splitlines()[-1]
    publisher.sql("INSERT INTO l1 VALUES (9000000000000, 0, 'x')", "UPDATE l1 SET v = 'y' WHERE k = 9000000000000", "DELETE FROM l1 WHERE k = 9000000000000", "SELECT pg_switch_wal()")
    found = publisher.sql("SELECT string_agg(split_part(description, ',', 1), ' ' ORDER BY start_lsn) FROM pg_get_wal_records_info_till_end_of_wal("
                          f"'{start}') WHERE resource_manager = 'loosekv' AND record_type = 'CHANGE'")
    if found != "inserted updated deleted":
        raise lib.Failure(f"pg_walinspect shows {found}")


def main(directory, servers):
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else (15 if lib.SHORT else 300)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    print(f"logical: seed {seed}", flush=True)
    publisher, subscriber = (lib.Server(os.path.join(directory, name), lib.BASE_PORT + at)
                             for at, name in enumerate(("publisher", "subscriber")))
    servers += [publisher, subscriber]
    # Transactions of some size go to disk, or are sent before they commit.
    publisher.create("wal_level = logical", "logical_decoding_work_mem = '64kB'", "wal_sender_timeout = '10s'")
    subscriber.create("wal_retrieve_retry_interval = '100ms'")
    for server in servers:
        server.sql(lib.twin_schema(), *WHOLE_ROWS)
    publisher.sql(*[f"INSERT INTO {t}1 SELECT i, i % 50, 'first' FROM generate_series(2000000, 2005000) i" for t in "hl"],
                  "CREATE PUBLICATION twins FOR ALL TABLES")
    subscriber.sql(f"CREATE SUBSCRIPTION twins CONNECTION 'host={publisher.directory} port={publisher.port} user=postgres dbname=postgres' "
                   "PUBLICATION twins WITH (streaming = on)")
    makers = [lib.Writer(i) for i in range(3)] + [lib.maintenance]
    kills, transactions = dict.fromkeys(("subscriber", "walsender", "worker", "publisher"), 0), 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or transactions == 0:
        load = lib.Load(publisher, directory, makers, f"{seed}-{transactions}").start()
        for what in kills:
            time.sleep(2 * rng.random())
            change_much(publisher)
            if what in ("publisher", "subscriber"):
                server = publisher if what == "publisher" else subscriber
                server.kill_all()
                server.start()
                killed = True
            else:
                server, title = (publisher, "walsender") if what == "walsender" else (subscriber, "logical replication worker")
                killed = server.kill_one(rng, title) is not None
                server.wait_ready()
            kills[what] += killed
        load.stop()
        transactions += sum(session.sent for session in load.sessions)
        complaints = load.complaints()
        if complaints:
            raise lib.Failure(f"seed {seed}: sessions were told: " + "\n".join(complaints[:10]))
        settled(subscriber)
        same(publisher, subscriber)
    described(publisher)
    return (f"{transactions} transactions, {', '.join(f'{what} killed {count} times' for what, count in kills.items())}; "
            "the subscriber's tables have the publisher's rows")


if __name__ == "__main__":
    lib.run("logical", main)
