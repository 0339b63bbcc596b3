-- Options of single tables.
CREATE FUNCTION options_of(regclass) RETURNS text[] LANGUAGE sql AS 'SELECT reloptions FROM pg_class WHERE oid = $1';

CREATE TABLE o1 (k int PRIMARY KEY, v text) USING loosekv
    WITH (loosekv.compression = 'zstd', loosekv.memtable_size = '128kB', fillfactor = 70, loosekv.fan_in = 4);
SELECT options_of('o1');
INSERT INTO o1 SELECT i, repeat('compresses well ', 10) FROM generate_series(1, 20000) i;
SELECT loosekv.flush('o1');
SELECT bool_and(compressed), count(*) > 1 AS small_memtables FROM loosekv.runs('o1');

-- As pg_dump writes them.
CREATE TABLE o2 (k int PRIMARY KEY) USING loosekv WITH (fillfactor='80', "loosekv.fan_in"='3');
SELECT options_of('o2');
SET default_table_access_method = loosekv;
CREATE TABLE o3 WITH (loosekv.filter_bits = 16) AS SELECT 1 AS k;
SELECT options_of('o3');
CREATE TABLE IF NOT EXISTS o3 (k int) WITH (loosekv.filter_bits = 8);
SELECT options_of('o3');
CREATE MATERIALIZED VIEW o4 WITH (loosekv.compression = zstd, loosekv.compression_level = 3) AS SELECT i FROM generate_series(1, 3) i;
SELECT options_of('o4');
CREATE TEMP TABLE o5 (k int) WITH (loosekv.compression = none) ON COMMIT DELETE ROWS;
SELECT options_of('o5');
-- A table of the same name elsewhere is not meant.
CREATE SCHEMA other CREATE TABLE o1 (k int) WITH (loosekv.space_percent = 50);
SELECT options_of('other.o1'), options_of('public.o1');
RESET default_table_access_method;

-- Changed, kept, reset; PostgreSQL's own beside them.
ALTER TABLE o1 SET (loosekv.compression = 'none', loosekv.tombstone_percent = 10);
SELECT options_of('o1');
ALTER TABLE o1 SET (fillfactor = 90);
SELECT options_of('o1');
ALTER TABLE o1 SET (autovacuum_enabled = off, loosekv.fan_in = 5), ALTER v SET STATISTICS 10;
SELECT options_of('o1');
ALTER TABLE o1 RESET (fillfactor, loosekv.memtable_size);
SELECT options_of('o1');
ALTER TABLE o1 RESET (loosekv.value_log_threshold);
SELECT options_of('o1');
UPDATE o1 SET v = v || '.' WHERE k < 3000;
SELECT loosekv.compact('o1');
SELECT bool_or(compressed) FROM loosekv.runs('o1');
ALTER MATERIALIZED VIEW o4 SET (loosekv.fan_in = 7);
SELECT options_of('o4');
ALTER TABLE IF EXISTS nowhere SET (loosekv.fan_in = 7);

-- They take effect at once, and with the transaction.
ALTER TABLE o1 SET (loosekv.compression = 'zstd:3');
BEGIN;
ALTER TABLE o1 RESET (loosekv.compression);
ROLLBACK;
BEGIN;
SAVEPOINT s;
ALTER TABLE o1 SET (loosekv.compression = 'none');
ROLLBACK TO s;
COMMIT;
SELECT options_of('o1');
UPDATE o1 SET v = v || '.' WHERE k < 3000;
SELECT loosekv.compact('o1');
SELECT bool_and(compressed) FROM loosekv.runs('o1');

-- Rewrites keep them.
VACUUM FULL o1;
ALTER TABLE o1 ADD COLUMN d float DEFAULT random();
ALTER TABLE o1 SET UNLOGGED;
TRUNCATE o1;
SELECT options_of('o1');
CREATE TABLE o6 (LIKE o1 INCLUDING ALL) USING loosekv;
SELECT options_of('o6');

-- A lock as for PostgreSQL's own options: readers and writers go on.
BEGIN;
ALTER TABLE o2 SET (loosekv.fan_in = 6);
SELECT mode FROM pg_locks WHERE relation = 'o2'::regclass AND pid = pg_backend_pid() ORDER BY mode;
COMMIT;

-- Refused.
DO $$
DECLARE statement text; message text; hint text;
BEGIN
    FOREACH statement IN ARRAY ARRAY[
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.compression = lz4)',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.compression = ''zstd:40'')',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.memtable_size = ''1kB'')',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.memtable_size = ''big'')',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.fan_in = 1)',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.fan_in)',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.colour = red)',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.filter_bits = 99)',
        'CREATE TABLE bad (k int) USING loosekv WITH (loosekv.key_pages = some)',
        'CREATE TABLE bad (k int) USING loosekv WITH (colour = red)',
        'CREATE TABLE bad (k int) USING heap WITH (loosekv.fan_in = 4)',
        'CREATE TABLE bad (k int) PARTITION BY RANGE (k) WITH (loosekv.fan_in = 4)',
        'ALTER TABLE o2 SET (loosekv.fan_in = many)',
        'ALTER TABLE o2 SET (fillfactor = 5, loosekv.fan_in = 4)',
        'ALTER TABLE o2 SET (colour = red)'] LOOP
        BEGIN
            EXECUTE statement;
            RAISE NOTICE '% - was taken', statement;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
            RAISE NOTICE E'%\n  % %\n  %', statement, SQLSTATE, message, hint;
        END;
    END LOOP;
END $$;
SELECT options_of('o2');
CREATE ROLE surface_stranger;
SET ROLE surface_stranger;
ALTER TABLE o2 SET (loosekv.fan_in = 8);
RESET ROLE;
DROP ROLE surface_stranger;
-- What failed leaves nothing to the statements after it, which may stand in its memory.
CREATE TABLE o8 (k int) USING loosekv;
BEGIN;
SAVEPOINT s;
ALTER TABLE o8 SET (loosekv.fan_in = 9, fillfactor = 5);
ROLLBACK TO s;
ALTER TABLE o8 SET (fillfactor = 50, parallel_workers = 2);
COMMIT;
SELECT options_of('o8');
-- A table that leaves takes none with it.
CREATE TABLE o7 (k int) USING loosekv WITH (loosekv.fan_in = 4, fillfactor = 50);
ALTER TABLE o7 SET ACCESS METHOD heap;
SELECT options_of('o7');
ALTER TABLE o7 SET (fillfactor = 60);
-- Pages of keys alone, from which a restart makes the key index: compressed tables have them if told so.
CREATE TABLE o9 (k uuid PRIMARY KEY, v text) USING loosekv;
CREATE FUNCTION pages_with(settings text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE o9 SET (%s)', settings);
    TRUNCATE o9;
    INSERT INTO o9 SELECT md5(n::text)::uuid, repeat(md5(n::text), 3) FROM generate_series(1, 20000) n;
    PERFORM loosekv.compact('o9');
    RETURN (SELECT sum(pages) FROM loosekv.runs('o9'));
END $$;
SELECT pages_with('loosekv.compression = none, loosekv.key_pages = off') AS off,
    pages_with('loosekv.key_pages = on') AS on_, pages_with('loosekv.key_pages = auto') AS auto \gset
SELECT :on_ - :off BETWEEN 35 AND 45 AS more_with_them, :auto = :on_ AS as_on;
SELECT pages_with('loosekv.compression = zstd, loosekv.key_pages = off') AS off,
    pages_with('loosekv.key_pages = on') AS on_, pages_with('loosekv.key_pages = auto') AS auto \gset
SELECT :on_ - :off BETWEEN 35 AND 45 AS more_with_them, :auto = :off AS as_off;
SELECT * FROM loosekv.check('o9');
DROP FUNCTION pages_with;
DROP MATERIALIZED VIEW o4;
DROP TABLE o1, o2, o3, o6, o7, o8, o9, other.o1;
DROP SCHEMA other;
DROP FUNCTION options_of;
