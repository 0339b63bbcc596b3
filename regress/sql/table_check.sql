-- loosekv.check finds nothing in sound tables, whatever was done to them, and may be called by those who may.
CREATE TABLE checked (k bigint PRIMARY KEY, s int, v text) USING loosekv;
CREATE INDEX ON checked (s);
SELECT * FROM loosekv.check('checked');
INSERT INTO checked SELECT i * 7919 % 20011, i % 100, md5(i::text) FROM generate_series(1, 20000) i;
INSERT INTO checked SELECT 50000 + i, i, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 300) j)
    FROM generate_series(1, 50) i;
SELECT * FROM loosekv.check('checked');
SELECT loosekv.flush('checked');
UPDATE checked SET v = v || 'x', s = s + 1 WHERE k % 3 = 0;
DELETE FROM checked WHERE k % 5 = 0;
BEGIN;
INSERT INTO checked SELECT -i, i, 'taken back' FROM generate_series(1, 1000) i;
SELECT * FROM loosekv.check('checked');
ROLLBACK;
SELECT loosekv.flush('checked');
SELECT * FROM loosekv.check('checked');
-- Settled by VACUUM, merged into one run.
VACUUM checked;
SELECT * FROM loosekv.check('checked');
SELECT loosekv.compact('checked');
SELECT * FROM loosekv.check('checked');
SELECT count(*) > 0 AS some, bool_and(settled) FROM loosekv.runs('checked');

CREATE TABLE keyless (a int, b text) USING loosekv WITH (loosekv.compression = 'zstd', loosekv.memtable_size = '64kB');
INSERT INTO keyless SELECT i, repeat('b', i % 300) FROM generate_series(1, 5000) i;
SELECT loosekv.flush('keyless');
SELECT * FROM loosekv.check('keyless');
CREATE TEMP TABLE passing (k text PRIMARY KEY) USING loosekv;
INSERT INTO passing SELECT 'key ' || i FROM generate_series(1, 3000) i;
SELECT loosekv.flush('passing');
SELECT * FROM loosekv.check('passing');
CREATE UNLOGGED TABLE loose (k text PRIMARY KEY) USING loosekv;
INSERT INTO loose SELECT 'key ' || i FROM generate_series(1, 3000) i;
SELECT * FROM loosekv.check('loose');

-- No transaction id is used up.
BEGIN;
SELECT * FROM loosekv.check('checked');
SELECT pg_current_xact_id_if_assigned();
COMMIT;

-- Who may.
CREATE ROLE surface_nobody;
CREATE ROLE surface_monitor IN ROLE pg_monitor;
GRANT SELECT ON checked TO surface_nobody;
SET ROLE surface_nobody;
SELECT * FROM loosekv.check('checked');
SELECT loosekv.flush('checked');
SELECT loosekv.compact('checked');
SELECT count(*) FROM loosekv.stats WHERE tablename IN ('checked', 'keyless');
SELECT count(*) FROM loosekv.runs('keyless');
SELECT loosekv.require_preload();
SELECT count(*) FROM loosekv.progress;
SELECT count(*) >= 0 FROM loosekv.horizon;
SET ROLE surface_monitor;
SELECT * FROM loosekv.check('checked');
SELECT count(*) FROM loosekv.stats WHERE tablename IN ('checked', 'keyless');
RESET ROLE;
DROP ROLE surface_monitor;
REVOKE SELECT ON checked FROM surface_nobody;
DROP ROLE surface_nobody;
CREATE TABLE heap_table (k int) USING heap;
SELECT * FROM loosekv.check('heap_table');
SELECT * FROM loosekv.check(NULL);

-- What memory is used for adds up.
SELECT part, bytes >= 0 AS counted, limit_bytes > 0 AS limited FROM loosekv.memory;
SELECT abs(sum(bytes) FILTER (WHERE part NOT IN ('key index', 'all')) - max(bytes) FILTER (WHERE part = 'all'))
           < max(bytes) FILTER (WHERE part = 'all') / 50 AS complete
FROM loosekv.memory;

-- The extension takes its tables with it, keys and all.
CREATE MATERIALIZED VIEW surface_view USING loosekv AS SELECT 1 AS k;
CREATE INDEX ON loose ((k || ' '));
BEGIN;
SET LOCAL client_min_messages = warning;
DROP EXTENSION loosekv CASCADE;
SELECT count(*) FROM pg_class WHERE relname IN ('checked', 'loose', 'loose_pkey', 'surface_view');
CREATE EXTENSION loosekv;
CREATE TABLE again (k int PRIMARY KEY) USING loosekv;
INSERT INTO again VALUES (1);
DROP EXTENSION loosekv CASCADE;
ROLLBACK;
SELECT count(*) FROM pg_class WHERE relname IN ('checked', 'loose', 'loose_pkey', 'surface_view');
SELECT count(*) FROM loose;

-- A cancel request ends it.
SET statement_timeout = 1;
SELECT count(*) FROM loosekv.check('checked'), generate_series(1, 1000) WHERE pg_sleep(0.01) IS NULL;
RESET statement_timeout;

-- What stats say adds up.
SELECT runs, levels > 0 AS levels, indexed_runs <= runs AS indexed, index_coverage BETWEEN 0 AND 1 AS coverage,
       value_bytes > 0 AS values, value_garbage_bytes >= 0 AS garbage, log_bytes > 0 AS logged,
       write_amplification > 1 AS amplified, flushes > 0 AS flushed, compactions > 0 AS merged, waiting_bytes >= 0 AS waiting
    FROM loosekv.stats WHERE tablename = 'checked';
DROP TABLE checked, keyless, loose, heap_table;
