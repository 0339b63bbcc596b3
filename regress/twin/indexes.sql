-- Secondary indexes of every kind.
CREATE TABLE s (k bigint PRIMARY KEY, v text, n int, arr int[], p point);
INSERT INTO s SELECT i, 'v' || i % 1000, i % 97, ARRAY[i % 5, i % 7], point(i % 100, i % 50) FROM generate_series(1, 5000) i;
CREATE INDEX s_v ON s (v);
CREATE INDEX s_n ON s (n) WHERE k > 2500;
CREATE INDEX s_expr ON s ((length(v)));
CREATE INDEX s_hash ON s USING hash (v);
CREATE INDEX s_gin ON s USING gin (arr);
CREATE INDEX s_gist ON s USING gist (p);
CREATE INDEX s_brin ON s USING brin (k);
CREATE INDEX CONCURRENTLY s_conc ON s (n, v DESC);
CREATE UNIQUE INDEX s_unique ON s (v, n, k);
ANALYZE s;
SELECT count(*) FROM s WHERE v = 'v55';
SELECT k FROM s WHERE v = 'v55' ORDER BY k;
SELECT count(*) FROM s WHERE n = 5 AND k > 2500;
SELECT count(*) FROM s WHERE length(v) = 3;
SELECT count(*) FROM s WHERE arr @> '{3,4}';
SELECT count(*) FROM s WHERE p <@ box '(0,0),(10,10)';
SELECT k FROM s ORDER BY p <-> point '(3,3)', k LIMIT 3;
SET enable_seqscan = off;
SET enable_indexscan = off;
SELECT count(*) FROM s WHERE v >= 'v99';
SELECT count(*) FROM s WHERE v = 'v5' OR n = 7;
SET work_mem = '64kB';
SELECT count(*), sum(k) FROM s WHERE v >= 'v1';
RESET ALL;
UPDATE s SET v = 'changed' WHERE k % 10 = 0;
DELETE FROM s WHERE k % 10 = 1;
SET enable_seqscan = off;
SELECT count(*) FROM s WHERE v = 'changed';
SELECT count(*) FROM s WHERE v = 'v1';
SELECT count(*) FROM s WHERE n = 5 AND k > 2500;
SELECT count(*) FROM s WHERE arr @> '{3,4}';
SELECT count(*) FROM s WHERE length(v) = 7;
RESET ALL;
VACUUM s;
SET enable_seqscan = off;
SELECT count(*) FROM s WHERE v = 'changed';
SELECT count(*) FROM s WHERE v = 'v1';
SELECT count(*) FROM s WHERE p <@ box '(0,0),(10,10)';
RESET ALL;
INSERT INTO s VALUES (10, 'dup');
CREATE UNIQUE INDEX s_u2 ON s ((v IS NULL));

CREATE TABLE u (k int PRIMARY KEY, a int UNIQUE, b int, UNIQUE (b) DEFERRABLE INITIALLY DEFERRED);
INSERT INTO u VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3);
INSERT INTO u VALUES (4, 1, 4);
UPDATE u SET a = 2 WHERE k = 1;
UPDATE u SET b = b + 1;
SELECT * FROM u ORDER BY k;
BEGIN;
UPDATE u SET b = 4 WHERE k = 1;
UPDATE u SET b = 9 WHERE k = 3;
COMMIT;
SELECT * FROM u ORDER BY k;
DELETE FROM u WHERE k = 2;
INSERT INTO u VALUES (5, 2, 3);
SELECT * FROM u WHERE a = 2;
REINDEX INDEX CONCURRENTLY s_v;
SELECT count(*) FROM s WHERE v = 'changed';
CREATE TABLE ex (k int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&));
INSERT INTO ex VALUES (1, '[1,5)'), (2, '[5,9)');
INSERT INTO ex VALUES (3, '[4,6)');
INSERT INTO ex VALUES (3, '[9,10)');
UPDATE ex SET r = '[2,3)' WHERE k = 2;
SELECT * FROM ex ORDER BY k;
CREATE EXTENSION amcheck;
-- an index that is older than the key sees rows that are duplicates before the key does
CREATE TABLE doubles (k int NOT NULL, v int);
CREATE INDEX doubles_v ON doubles (v);
ALTER TABLE doubles ADD PRIMARY KEY (k);
INSERT INTO doubles VALUES (5, 0);
DO $$ DECLARE file text := current_setting('data_directory') || '/doubles.txt'; BEGIN
    EXECUTE format('COPY (VALUES (1000001, 7), (1000002, 7), (5, 7)) TO %L', file);
    FOR i IN 1..2000 LOOP
        BEGIN
            EXECUTE format('COPY doubles FROM %L', file);
        EXCEPTION WHEN unique_violation THEN NULL;
        END;
    END LOOP;
END $$;
SELECT bt_index_check('doubles_v');
INSERT INTO doubles SELECT i, 7 FROM generate_series(100, 3000) i;
SET enable_seqscan = off;
SELECT count(*) FROM doubles WHERE v = 7;
RESET enable_seqscan;
VACUUM doubles;
-- what stands in secondary indexes is what stands in the tables
SELECT c.relname, bt_index_check(c.oid, true) FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_index i ON i.indexrelid = c.oid
    WHERE a.amname = 'btree' AND c.relnamespace = 'public'::regnamespace AND NOT i.indisprimary ORDER BY c.relname;
-- and VACUUM counts the rows for the key, too
CREATE TABLE counted (k int PRIMARY KEY, v int);
INSERT INTO counted SELECT i, i FROM generate_series(1, 5000) i;
VACUUM ANALYZE counted;
DELETE FROM counted WHERE k % 10 = 0;
VACUUM counted;
SELECT relname, reltuples FROM pg_class WHERE relname IN ('counted', 'counted_pkey') ORDER BY 1;

-- Rows come back in another order than the index finds them in, with their system columns.
CREATE TABLE g (k int PRIMARY KEY, c circle);
INSERT INTO g SELECT i, circle(point(i % 50, i / 50), 1 + i % 7) FROM generate_series(1, 2000) i;
CREATE INDEX g_c ON g USING gist (c);
SET enable_seqscan = off;
SET enable_sort = off;
SELECT k, xmin::text <> '0' AS xmin, tableoid::regclass FROM g ORDER BY c <-> point(20.3, -20.2) LIMIT 5;
RESET ALL;

-- Errors of functions, while an index is built, come as they are.
CREATE FUNCTION fails(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
    IF x = 7 THEN
        RAISE EXCEPTION 'seven' USING ERRCODE = 'ZZ123', DETAIL = 'it is 7', HINT = 'take 8', CONSTRAINT = 'no_seven', COLUMN = 'k';
    END IF;
    RETURN x;
END $$;
CREATE TABLE failing (k int PRIMARY KEY, v int);
INSERT INTO failing SELECT i, i % 3 FROM generate_series(1, 20) i;
CREATE FUNCTION how(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE state text; message text; detail text; hint text; name text; col text;
BEGIN
    EXECUTE statement;
    RETURN 'done';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
        name = CONSTRAINT_NAME, col = COLUMN_NAME;
    RETURN concat_ws(', ', state, message, detail, hint, name, col);
END $$;
SELECT how('CREATE INDEX ON failing (fails(k))');
SELECT how('CREATE INDEX ON failing (v) WHERE fails(k) > 3');
SELECT how('CREATE INDEX ON failing USING hash (fails(k))');
SELECT how('CREATE INDEX ON failing USING brin (fails(k))');
SELECT how('CREATE INDEX ON failing (v) WHERE fails(k) <> 7 AND k <> 7');
SELECT how('CREATE INDEX ON failing (fails(k)) WHERE k <> 7');
\set VERBOSITY verbose
\set SHOW_CONTEXT never
CREATE INDEX CONCURRENTLY failing_k ON failing (fails(k));
\set VERBOSITY default
DROP INDEX failing_k;
SELECT count(*), sum(k) FROM failing WHERE k > 3;
