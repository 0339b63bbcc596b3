-- Entries of rows that are gone leave the indexes that are not the key; where there are none, VACUUM does not look for them.
CREATE TABLE t (k int PRIMARY KEY, s int) USING loosekv WITH (autovacuum_enabled = off);
CREATE INDEX t_s ON t (s);
CREATE FUNCTION seen_by_all() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM pg_stat_activity
                  WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()) LOOP
        PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
    END LOOP;
END $$;
-- Pages of the index that were looked at since it was last asked.
CREATE TABLE looked (pages bigint);
INSERT INTO looked VALUES (0);
CREATE FUNCTION pages_looked_at() RETURNS bigint LANGUAGE sql AS $$
    WITH now AS (SELECT idx_blks_hit + idx_blks_read AS pages FROM pg_statio_user_indexes WHERE indexrelname = 't_s'),
         before AS (SELECT pages FROM looked), noted AS (UPDATE looked SET pages = now.pages FROM now)
    SELECT now.pages - before.pages FROM now, before $$;
INSERT INTO t SELECT i, i % 1000 FROM generate_series(1, 20000) i;
SELECT seen_by_all();
VACUUM t;
SELECT pg_stat_force_next_flush();
SELECT pages_looked_at() > 20;
-- Nothing was dropped since.
VACUUM t;
SELECT pg_stat_force_next_flush();
SELECT pages_looked_at() < 5;
INSERT INTO t SELECT i, i % 1000 FROM generate_series(20001, 21000) i;
SELECT pg_stat_force_next_flush();
SELECT pages_looked_at() > 0;
SELECT seen_by_all();
VACUUM t;
SELECT pg_stat_force_next_flush();
SELECT pages_looked_at() < 5;
VACUUM (INDEX_CLEANUP ON) t;
SELECT pg_stat_force_next_flush();
SELECT pages_looked_at() > 20;
-- Dead rows that still stand in the table, then rows that have gone from it.
UPDATE t SET s = s + 1 WHERE k <= 7000;
SELECT seen_by_all();
VACUUM t;
SELECT reltuples FROM pg_class WHERE relname = 't_s';
DELETE FROM t WHERE k <= 7000;
SELECT loosekv.flush('t');
SELECT seen_by_all();
SELECT loosekv.compact('t');
VACUUM t;
SELECT reltuples FROM pg_class WHERE relname = 't_s';
-- Of a writer who aborted.
BEGIN;
INSERT INTO t SELECT i, i % 1000 FROM generate_series(50001, 51000) i;
SELECT loosekv.flush('t');
ROLLBACK;
VACUUM t;
SELECT reltuples FROM pg_class WHERE relname = 't_s';
DROP TABLE t, looked;
DROP FUNCTION seen_by_all, pages_looked_at;
