-- What parallel workers have looked at is in EXPLAIN's section: the sums are the same, whoever did the work.
CREATE TABLE e (k int PRIMARY KEY, v text) USING loosekv;
INSERT INTO e SELECT i, 'v' FROM generate_series(1, 2000) i;
SELECT loosekv.flush('e');
INSERT INTO e SELECT i, 'v' FROM generate_series(2001, 4000) i;
SELECT loosekv.flush('e');
CREATE TABLE h WITH (parallel_workers = 2) AS SELECT k FROM e;
ANALYZE e, h;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET min_parallel_index_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_memoize = off;
SET enable_material = off;
CREATE FUNCTION section(query text) RETURNS TABLE (gathers bigint, shown text) LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
    gathers = 0;
    FOR line IN EXECUTE format('EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) %s', query) LOOP
        IF line ~ 'Workers Planned' THEN gathers = gathers + 1; END IF;
        IF line ~ 'LooseKV:' THEN shown = line; END IF;
    END LOOP;
    RETURN NEXT;
END $$;
-- Workers alone, with the leader, and the leader alone: with the same plan.
CREATE FUNCTION whoever(query text) RETURNS TABLE (gathers bigint, same boolean, look_ups text) LANGUAGE plpgsql AS $$
DECLARE workers record; both_kinds record; leader record;
BEGIN
    SET LOCAL parallel_leader_participation = off;
    SELECT * INTO workers FROM section(query);
    SET LOCAL parallel_leader_participation = on;
    SELECT * INTO both_kinds FROM section(query);
    SET LOCAL max_parallel_workers = 0;
    SELECT * INTO leader FROM section(query);
    RESET max_parallel_workers;
    RETURN QUERY SELECT leader.gathers, workers = leader AND both_kinds = leader, substring(leader.shown, 'look-ups=\d+');
END $$;
SELECT * FROM whoever('SELECT count(*) FROM e WHERE v = ''v''');
SELECT * FROM whoever('SELECT count(e.v) FROM h JOIN e USING (k)');
-- Several Gathers, and one that is run again and again.
SELECT * FROM whoever('SELECT (SELECT count(*) FROM e WHERE v = ''v''), (SELECT count(e.v) FROM e JOIN h USING (k) WHERE h.k < 100)');
SELECT * FROM whoever('SELECT * FROM (VALUES (1), (2), (3)) g (n) LEFT JOIN (SELECT count(*) AS n FROM e WHERE v = ''v'') x ON g.n <> x.n');
SELECT * FROM whoever('SELECT e.v FROM h JOIN e USING (k) ORDER BY e.v || k LIMIT 3');
-- Prepared, and by a function of the query, whose own plan has a Gather that is not shown.
PREPARE joined (int) AS SELECT count(e.v) FROM h JOIN e USING (k) WHERE h.k <= $1;
SELECT * FROM whoever('EXECUTE joined (500)');
CREATE FUNCTION counted() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(e.v) FROM h JOIN e USING (k)); END $$;
SELECT * FROM whoever('SELECT counted()');
-- Workers that fail: what they had seen counts for nobody.
DO $$ BEGIN EXECUTE 'EXPLAIN ANALYZE SELECT count(1 / (e.k - 3900)) FROM h JOIN e USING (k)'; EXCEPTION WHEN division_by_zero THEN NULL; END $$;
SELECT * FROM whoever('SELECT count(e.v) FROM h JOIN e USING (k)');
-- In workers: each explains its own.
CREATE FUNCTION by_worker(n int) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
DECLARE line text;
BEGIN
    FOR line IN EXECUTE format('EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT v FROM e WHERE k = %s', n) LOOP
        IF line ~ 'LooseKV' THEN RETURN regexp_replace(line, 'pages=[1-9][0-9]*', 'pages=some'); END IF;
    END LOOP;
END $$;
SELECT * FROM whoever('SELECT by_worker(k) FROM h WHERE k <= 10');
SELECT by_worker(k), count(*) FROM h WHERE k <= 10 GROUP BY 1;
-- A leader that explains while its own query is going on cannot tell the workers apart, and says so.
CREATE FUNCTION by_leader(n bigint, format text) RETURNS text LANGUAGE plpgsql PARALLEL RESTRICTED AS $$
DECLARE line text; plan text = '';
BEGIN
    FOR line IN EXECUTE format('EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, FORMAT %s) SELECT count(e.v) FROM h JOIN e USING (k) WHERE h.k <= %s', format, n) LOOP
        plan = plan || line || E'\n';
    END LOOP;
    RETURN plan;
END $$;
SET parallel_leader_participation = off;
SELECT plan ~ 'LooseKV: look-ups=0 .*\(without parallel workers\)' OR plan ~ 'Workers Launched: [01]' AS said
  FROM (SELECT by_leader(count(*), 'TEXT') FROM e WHERE v = 'v') x (plan);
SELECT plan -> 0 -> 'LooseKV' -> 'Parallel Workers Counted' = 'false' OR plan::text ~ 'Workers Launched": [01]' AS said
  FROM (SELECT by_leader(count(*), 'JSON')::jsonb FROM e WHERE v = 'v') x (plan);
RESET parallel_leader_participation;
SELECT * FROM whoever('SELECT by_leader(count(*), ''TEXT'') FROM e WHERE v = ''v''');
DEALLOCATE ALL;
DROP TABLE e, h;
DROP FUNCTION section, whoever, counted, by_worker, by_leader;
