-- Which upserts leave the old row unread: those of rows in a run that everybody sees, if they want nothing of it but the key.
CREATE TABLE t (k int PRIMARY KEY, v text, n int) USING loosekv;
INSERT INTO t SELECT i, 'old', i FROM generate_series(1, 100) i;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
CREATE FUNCTION runs(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
    -- A worker's snapshot may be older than the rows for a moment.
    WHILE EXISTS (SELECT FROM pg_stat_activity
                  WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()) LOOP
        PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
    END LOOP;
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || query LOOP
        IF line ~ 'LooseKV' THEN
            RETURN substring(line FROM 'runs looked into=\d+');
        END IF;
    END LOOP;
END $$;
SELECT loosekv.flush('t');
SELECT runs('INSERT INTO t VALUES (1, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n');
SELECT runs('INSERT INTO t VALUES (2, ''new'', 0), (3, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = t.k + 1');
-- The new version is in the memtable; that one is read, and no run.
SELECT runs('INSERT INTO t VALUES (1, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n');
-- These want something of the old row.
SELECT runs('INSERT INTO t VALUES (4, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v');
SELECT runs('INSERT INTO t VALUES (5, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = t.v, n = excluded.n');
SELECT runs('INSERT INTO t VALUES (6, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = t::text, n = excluded.n');
SELECT runs('INSERT INTO t VALUES (7, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = t.xmin::text, n = excluded.n');
SELECT runs('INSERT INTO t VALUES (8, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n WHERE t.n > 0');
SELECT runs('INSERT INTO t VALUES (9, ''new'', 0) ON CONFLICT (k) DO UPDATE SET k = 109, v = excluded.v, n = excluded.n');
-- Updates by key.
SELECT loosekv.flush('t');
SELECT runs('UPDATE t SET v = ''new'', n = 0 WHERE k = 21');
SELECT runs('UPDATE t SET v = ''new'', n = 0 WHERE k IN (22, 23)');
SELECT runs('UPDATE t SET v = ''new'', n = k WHERE k = 24');
SELECT runs('UPDATE t SET v = ''new'', n = 0 WHERE k = -24');
SELECT runs('UPDATE t SET v = ''new'' WHERE k = 25');
SELECT runs('UPDATE t SET v = v, n = 0 WHERE k = 26');
SELECT runs('UPDATE t SET v = ''new'', n = 0 WHERE k = 27 AND n > 0');
SELECT runs('UPDATE t SET k = 128, v = ''new'', n = 0 WHERE k = 28');
-- A deleted row is not in the way.
DELETE FROM t WHERE k = 10;
SELECT loosekv.flush('t');
INSERT INTO t VALUES (10, 'inserted', 0) ON CONFLICT (k) DO UPDATE SET v = 'not this', n = 0 RETURNING *;
-- Rows of a writer who still runs, when they were flushed, are read.
BEGIN;
INSERT INTO t VALUES (201, 'own', 0);
SELECT loosekv.flush('t');
SELECT runs('INSERT INTO t VALUES (201, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n') AS own;
COMMIT;
-- Indexes, triggers and policies look at the old row.
SELECT loosekv.compact('t');
CREATE INDEX ON t (n);
SELECT runs('INSERT INTO t VALUES (11, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n');
DROP INDEX t_n_idx;
SELECT runs('INSERT INTO t VALUES (12, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n');
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER nothing BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nothing();
SELECT runs('INSERT INTO t VALUES (13, ''new'', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n');
SELECT count(*), sum(k), count(*) FILTER (WHERE v = 'old') AS old FROM t;
SELECT * FROM loosekv.check('t');
DROP TABLE t;
DROP FUNCTION runs, nothing;
