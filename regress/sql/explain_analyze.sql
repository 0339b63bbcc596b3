-- What EXPLAIN (ANALYZE) says of scans on loosekv tables.
CREATE TABLE e (k int PRIMARY KEY, v text) USING loosekv;
INSERT INTO e SELECT i, 'v' FROM generate_series(1, 2000) i;
SELECT loosekv.flush('e');
INSERT INTO e SELECT i, 'v' FROM generate_series(2001, 4000) i;
SELECT loosekv.flush('e');
CREATE FUNCTION section(query text, options text DEFAULT 'ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF') RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
    FOR line IN EXECUTE format('EXPLAIN (%s) %s', options, query) LOOP
        IF line ~ 'LooseKV' THEN
            RETURN NEXT regexp_replace(line, 'pages=[1-9][0-9]*', 'pages=some');
        END IF;
    END LOOP;
END $$;
SET max_parallel_workers_per_gather = 0;
SELECT section('SELECT * FROM e WHERE k = 17');
SELECT section('SELECT * FROM e WHERE k = -17');
SELECT section('SELECT count(*) FROM e WHERE v = ''v''');
-- Nothing was looked at, or nothing was done.
SELECT section('SELECT 1');
SELECT section('SELECT * FROM e WHERE k = 17', 'COSTS OFF');
-- The other formats: within the query's group.
CREATE FUNCTION explained(query text, format text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE plan text;
BEGIN
    EXECUTE format('EXPLAIN (ANALYZE, FORMAT %s) %s', format, query) INTO plan;
    RETURN plan;
END $$;
SELECT jsonb_object_keys(explained('SELECT * FROM e WHERE k = 17', 'json')::jsonb -> 0 -> 'LooseKV');
SELECT explained('SELECT * FROM e WHERE k = 17', 'json')::jsonb -> 0 -> 'LooseKV' ->> 'Look-ups';
SELECT explained('SELECT * FROM e WHERE k = 17', 'yaml') ~ 'LooseKV:\s+Look-ups: 1';
SELECT xpath('//e:LooseKV/e:Look-ups/text()', explained('SELECT * FROM e WHERE k = 17', 'xml')::xml,
             ARRAY[ARRAY['e', 'http://www.postgresql.org/2009/explain']]);
-- A function of the query that explains, or fails, in between.
SELECT section('SELECT section(''SELECT * FROM e WHERE k = 1''), k FROM e WHERE k = 2') ~ 'LooseKV' AS outer_too;
DO $$ BEGIN EXECUTE 'EXPLAIN ANALYZE SELECT 1 / (k - 17) FROM e WHERE k = 17'; EXCEPTION WHEN division_by_zero THEN NULL; END $$;
SELECT section('SELECT * FROM e WHERE k = 17');
-- Buffers of planning are still there.
SELECT count(*) FROM (SELECT explained('SELECT * FROM e WHERE k = 3', 'text')) x;
SELECT section('INSERT INTO e VALUES (-1, ''new'') ON CONFLICT DO NOTHING') ~ 'look-ups=[1-9]' AS looked;
DROP TABLE e;
DROP FUNCTION section, explained;
