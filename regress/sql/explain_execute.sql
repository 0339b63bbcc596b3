-- EXPLAIN (ANALYZE) EXECUTE: the section of loosekv, for each query of a prepared statement.
CREATE TABLE e (k int PRIMARY KEY, v text) USING loosekv;
INSERT INTO e SELECT i, 'v' FROM generate_series(1, 2000) i;
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
CREATE FUNCTION explained(query text, format text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE plan text;
BEGIN
    EXECUTE format('EXPLAIN (ANALYZE, FORMAT %s) %s', format, query) INTO plan;
    RETURN plan;
END $$;
PREPARE one (int) AS SELECT * FROM e WHERE k = $1;
SELECT section('EXECUTE one (17)');
SELECT section('CREATE TABLE made AS EXECUTE one (17)');
SELECT * FROM made;
SELECT section('EXECUTE one (17)', 'COSTS OFF');
EXPLAIN (COSTS OFF) EXECUTE one (17);
-- The other formats: within the query's group.
SELECT json_object_keys(explained('EXECUTE one (17)', 'json')::json -> 0);
SELECT jsonb_object_keys(explained('EXECUTE one (17)', 'json')::jsonb -> 0 -> 'LooseKV');
SELECT explained('EXECUTE one (17)', 'json')::jsonb -> 0 -> 'LooseKV' ->> 'Look-ups';
SELECT explained('CREATE TABLE more AS EXECUTE one (17)', 'json')::jsonb -> 0 -> 'LooseKV' ->> 'Look-ups';
SELECT explained('EXECUTE one (17)', 'yaml') ~ 'LooseKV:\s+Look-ups: 1';
SELECT xpath('//e:Query/e:LooseKV/e:Look-ups/text()', explained('EXECUTE one (17)', 'xml')::xml,
             ARRAY[ARRAY['e', 'http://www.postgresql.org/2009/explain']]);
-- Parameters whose computation reads: that is not the query's.
CREATE FUNCTION noisy(k int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM count(*) FROM e WHERE v = 'v';
    PERFORM section('EXECUTE one (3)');
    RETURN k;
END $$;
SELECT section('EXECUTE one (noisy(17))');
-- More queries than one, and one that is none of ours.
CREATE TABLE noted (k int PRIMARY KEY) USING loosekv;
CREATE TABLE heap (k int) USING heap;
CREATE TABLE ruled (k int PRIMARY KEY) USING loosekv;
CREATE RULE also AS ON INSERT TO ruled DO ALSO INSERT INTO heap VALUES (new.k);
CREATE RULE too AS ON INSERT TO ruled DO ALSO INSERT INTO noted VALUES (new.k), (-new.k);
CREATE RULE tell AS ON INSERT TO ruled DO ALSO NOTIFY ruled;
PREPARE several (int) AS INSERT INTO ruled VALUES ($1);
SELECT section('EXECUTE several (1)') ~ 'look-ups=[12]';
SELECT n, plan -> 'Plan' ->> 'Relation Name' AS into_table, plan -> 'LooseKV' ->> 'Look-ups' AS look_ups
  FROM jsonb_array_elements(explained('EXECUTE several (2)', 'json')::jsonb) WITH ORDINALITY x (plan, n) ORDER BY n;
SELECT * FROM noted ORDER BY k;
-- From a cached plan, more than once.
CREATE FUNCTION again() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
    FOR line IN EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE one (17) LOOP
        RETURN NEXT substring(line, 'LooseKV: look-ups=\d+');
    END LOOP;
END $$;
SELECT x FROM generate_series(1, 7), again() x WHERE x IS NOT NULL;
-- Errors are PostgreSQL's own, and leave nothing behind.
EXPLAIN (ANALYZE) EXECUTE missing (1);
EXPLAIN (ANALYZE) EXECUTE one;
EXPLAIN (ANALYZE, WRONG) EXECUTE one (17);
EXPLAIN (TIMING) EXECUTE one (17);
EXPLAIN (ANALYZE) CREATE TABLE made AS EXECUTE one (17);
EXPLAIN (ANALYZE) CREATE TABLE IF NOT EXISTS made AS EXECUTE one (17);
PREPARE failing (int) AS SELECT 1 / (k - 17) FROM e WHERE k = $1;
EXPLAIN (ANALYZE) EXECUTE failing (17);
SELECT section('EXECUTE one (17)');
-- A query that fails within an explained one takes nothing away from it.
CREATE FUNCTION caught(k int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM section('EXECUTE failing (17)');
    RETURN k;
EXCEPTION WHEN division_by_zero THEN
    RETURN -k;
END $$;
SELECT section('SELECT caught(k) FROM e WHERE k = 5');
SELECT section('CREATE TABLE negative AS SELECT caught(k) FROM e WHERE k = 5');
SELECT * FROM negative;
DEALLOCATE ALL;
DROP TABLE e, made, more, noted, ruled, heap, negative;
DROP FUNCTION section, explained, noisy, again, caught;
