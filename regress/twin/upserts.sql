-- INSERT ... ON CONFLICT DO UPDATE of many rows, whose new versions may be appended together: nobody can tell, whatever happens on the way.
\ir shared/settle.sql
CREATE TABLE t (k int PRIMARY KEY, v text, n int CHECK (n > -1000));
INSERT INTO t SELECT i, 'old', i FROM generate_series(1, 1000) i;
CREATE VIEW told AS SELECT v, count(*), sum(k) AS keys, sum(n) AS numbers FROM t GROUP BY v ORDER BY v;
SELECT settle();
INSERT INTO t SELECT i, 'new', -1 FROM generate_series(1, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SELECT * FROM told;
INSERT INTO t VALUES (1, 'newer', 1), (2, 'newer', 2), (301, 'newer', 3), (302, 'newer', 4) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = t.k;
INSERT INTO t SELECT i, 'told', 0 FROM generate_series(303, 306) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n RETURNING *;
SELECT * FROM told;
-- New rows among the old ones, and old ones in every order.
INSERT INTO t SELECT i, 'half', 0 FROM generate_series(951, 1050) i ORDER BY i % 7, i ON CONFLICT (k) DO UPDATE SET v = excluded.v || ' old', n = excluded.n;
INSERT INTO t SELECT i, 'back', 0 FROM generate_series(900, 801, -1) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SELECT * FROM told;
SELECT settle();
-- A row that is hit twice: at once, at the end of a batch, in a later batch; one that the statement has inserted; not what was there before it.
INSERT INTO t VALUES (5, 'twice', 0), (5, 'twice', 1) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT 1 + i % 32, 'twice', 0 FROM generate_series(0, 32) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT 1 + i % 31, 'twice', 0 FROM generate_series(0, 31) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT 1 + i % 100, 'twice', 0 FROM generate_series(0, 100) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT 2001 + i % 10, 'twice', 0 FROM generate_series(0, 10) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT CASE WHEN i = 20 THEN 7 ELSE i END, 'twice', 0 FROM generate_series(1, 100) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
BEGIN;
INSERT INTO t SELECT i, 'once', 0 FROM generate_series(1, 50) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, 'once more', 0 FROM generate_series(41, 90) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SELECT * FROM told;
UPDATE t SET n = n + 1 WHERE k BETWEEN 30 AND 60;
DELETE FROM t WHERE k BETWEEN 45 AND 47;
INSERT INTO t SELECT i, 'third', 0 FROM generate_series(40, 50) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
COMMIT;
SELECT * FROM told;
-- Errors on the way.
INSERT INTO t SELECT i, 'error', 10 / (i - 80) FROM generate_series(1, 100) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, 'error', 0 FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = 10 / (t.k - 180);
INSERT INTO t SELECT i, 'error', -i FROM generate_series(980, 1000) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT nullif(i, 180), 'error', 0 FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SELECT * FROM told;
BEGIN;
SAVEPOINT s;
INSERT INTO t SELECT i, 'taken back', 0 FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
ROLLBACK TO s;
SELECT * FROM told;
INSERT INTO t SELECT i, 'error', 10 / (i - 170) FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
ROLLBACK TO s;
INSERT INTO t SELECT i, 'kept', 0 FROM generate_series(151, 250) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
RELEASE s;
COMMIT;
SELECT * FROM told;
SELECT settle();
-- The statement reads the table itself.
INSERT INTO t SELECT k, 'itself', n + 1 FROM t WHERE k BETWEEN 300 AND 400 ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT k - 50, 'counted', (SELECT count(*) FROM t WHERE v = 'counted') FROM t WHERE k BETWEEN 400 AND 500 ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, 'looked up', 0 FROM generate_series(501, 600) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = (SELECT o.n FROM t o WHERE o.k = excluded.k - 1);
WITH x AS (INSERT INTO t SELECT i, 'below', 0 FROM generate_series(601, 640) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n RETURNING k)
INSERT INTO t SELECT k + 100, 'above', 0 FROM x ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SELECT * FROM told;
SELECT settle();
-- Functions that look, from within the statement.
CREATE FUNCTION seen(what text) RETURNS int LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN (SELECT count(*) FROM t WHERE v = what); END $$;
CREATE FUNCTION seen_before(what text) RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN (SELECT count(*) FROM t WHERE v = what); END $$;
INSERT INTO t SELECT i, 'seen', seen('seen') FROM generate_series(1, 100) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, 'before', seen_before('before') FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, 'set', 0 FROM generate_series(201, 300) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = CASE WHEN t.k % 40 = 3 THEN seen('set') END;
INSERT INTO t SELECT i, 'set before', 0 FROM generate_series(301, 400) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = CASE WHEN t.k % 40 = 3 THEN seen_before('set before') END;
SELECT * FROM told;
CREATE FUNCTION one_of(which int) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT v FROM t WHERE k = which';
INSERT INTO t SELECT i, coalesce(one_of(i - 1), 'first'), 0 FROM generate_series(800, 850) i ON CONFLICT (k) DO UPDATE SET v = excluded.v || '+', n = excluded.n;
SELECT k, v FROM t WHERE k BETWEEN 848 AND 850 ORDER BY k;
SELECT settle();
-- Functions that change rows of the table: ones that the statement has changed, is changing, or will come to.
CREATE FUNCTION meddle(key int, what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF what = 'update' THEN
        UPDATE t SET n = n + 1000 WHERE k = key;
    ELSIF what = 'delete' THEN
        DELETE FROM t WHERE k = key;
    ELSIF what = 'upsert' THEN
        INSERT INTO t VALUES (key, 'by the function', 0), (key + 5000, 'by the function', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
    ELSIF what = 'many' THEN
        INSERT INTO t SELECT i, 'by the function', 0 FROM generate_series(key, key + 50) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
    ELSIF what = 'lock' THEN
        PERFORM FROM t WHERE k = key FOR UPDATE;
    ELSIF what = 'settle' THEN
        PERFORM settle();
    ELSIF what IN ('fail', 'fail later') THEN
        BEGIN
            INSERT INTO t SELECT i, 'in vain', 10 / (i - key - 40) FROM generate_series(key, key + 40) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
        EXCEPTION WHEN division_by_zero THEN
            NULL;
        END;
    ELSIF what = 'twice' THEN
        BEGIN
            INSERT INTO t VALUES (key, 'in vain', 0), (key, 'in vain', 0) ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
        EXCEPTION WHEN cardinality_violation THEN
            NULL;
        END;
    END IF;
    RETURN coalesce(what, 'plain');
END $$;
INSERT INTO t SELECT i, meddle(i - 1, CASE WHEN i % 10 = 0 THEN 'update' END), 0 FROM generate_series(1, 100) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, meddle(i - 1, CASE WHEN i % 10 = 0 THEN 'delete' END), 0 FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, meddle(i - 1, CASE WHEN i % 10 = 0 THEN 'upsert' END), 0 FROM generate_series(201, 300) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, meddle(i + 4000, CASE WHEN i % 10 = 0 THEN 'many' END), 0 FROM generate_series(301, 400) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, meddle(i - 5, CASE WHEN i % 10 = 0 THEN 'lock' END), 0 FROM generate_series(401, 500) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, meddle(i, CASE WHEN i % 10 = 0 THEN 'settle' END), 0 FROM generate_series(501, 600) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SELECT * FROM told;
SELECT settle();
INSERT INTO t SELECT i, meddle(i - 20, CASE WHEN i % 10 = 0 THEN 'fail' END), 0 FROM generate_series(1, 100) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, meddle(i + 10, CASE WHEN i % 10 = 0 THEN 'twice' END), 0 FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
INSERT INTO t SELECT i, 'x', 0 FROM generate_series(201, 300) i ON CONFLICT (k) DO UPDATE SET v = meddle(t.k - 1, CASE WHEN t.k % 10 = 0 THEN 'update' END), n = excluded.n;
INSERT INTO t SELECT i, 'x', 0 FROM generate_series(301, 400) i ON CONFLICT (k) DO UPDATE SET v = meddle(t.k - 1, CASE WHEN t.k % 10 = 0 THEN 'delete' END), n = excluded.n;
INSERT INTO t SELECT i, 'x', 0 FROM generate_series(401, 500) i ON CONFLICT (k) DO UPDATE SET v = meddle(t.k, CASE WHEN t.k % 10 = 0 THEN 'settle' END), n = excluded.n;
INSERT INTO t SELECT i, 'x', 0 FROM generate_series(501, 600) i ON CONFLICT (k) DO UPDATE SET v = meddle(t.k, CASE WHEN t.k % 90 = 0 THEN 'delete' END), n = excluded.n;
INSERT INTO t SELECT i, 'x', 0 FROM generate_series(601, 700) i ON CONFLICT (k) DO UPDATE SET v = meddle(t.k, CASE WHEN t.k % 90 = 0 THEN 'update' END), n = excluded.n;
INSERT INTO t SELECT i, 'x', 0 FROM generate_series(701, 800) i ON CONFLICT (k) DO UPDATE SET v = meddle(t.k + 1, CASE WHEN t.k % 90 = 0 THEN 'update' END), n = excluded.n;
INSERT INTO t SELECT i, 'x', 0 FROM generate_series(801, 900) i ON CONFLICT (k) DO UPDATE SET v = meddle(t.k, CASE WHEN t.k % 10 = 0 THEN 'fail later' END), n = excluded.n;
SELECT * FROM told;
-- Rows locked before; in a transaction with a snapshot; so many that their locks would not fit; large ones.
SELECT settle();
BEGIN;
SELECT count(*) FROM (SELECT FROM t WHERE k <= 20 FOR UPDATE) x;
INSERT INTO t SELECT i, 'locked', 0 FROM generate_series(11, 60) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
SAVEPOINT s;
INSERT INTO t SELECT i, 'locked', 1 FROM generate_series(61, 100) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
ROLLBACK TO s;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM t;
INSERT INTO t SELECT i, 'repeatable', 0 FROM generate_series(101, 200) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM t;
INSERT INTO t SELECT i, 'serializable', 0 FROM generate_series(201, 300) i ON CONFLICT (k) DO UPDATE SET v = excluded.v, n = excluded.n;
COMMIT;
SELECT * FROM told;
CREATE TABLE m (k text COLLATE "C" PRIMARY KEY, v text);
INSERT INTO m SELECT 'key ' || i, 'old' FROM generate_series(1, 20000) i;
SELECT settle('m');
BEGIN;
INSERT INTO m SELECT 'key ' || i, 'new' FROM generate_series(1, 20000) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
SELECT v, count(*) FROM m GROUP BY v;
ROLLBACK;
INSERT INTO m SELECT 'key ' || i, repeat('large', i * i) FROM generate_series(1, 80) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
INSERT INTO m SELECT 'key ' || i, repeat('last', i % 100) FROM generate_series(20000, 1, -1) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
SELECT count(*), sum(length(v)), max(length(v)) FROM m;
-- Triggers and statements in functions.
CREATE FUNCTION saw() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'there are %', (SELECT count(*) FROM m WHERE v = 'seen'); RETURN NULL; END $$;
CREATE TRIGGER saw AFTER INSERT OR UPDATE ON m FOR EACH STATEMENT EXECUTE FUNCTION saw();
SELECT settle('m');
INSERT INTO m SELECT 'key ' || i, 'seen' FROM generate_series(1, 40) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
DROP TRIGGER saw ON m;
DO $$
DECLARE changed int;
BEGIN
    FOR round IN 1..3 LOOP
        INSERT INTO m SELECT 'key ' || i, 'round ' || round FROM generate_series(round * 100, round * 150) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
        GET DIAGNOSTICS changed = ROW_COUNT;
        RAISE NOTICE '% of %', changed, (SELECT count(*) FROM m WHERE v LIKE 'round%');
    END LOOP;
END $$;
SELECT v, count(*) FROM m WHERE v LIKE 'round%' OR v = 'seen' GROUP BY v ORDER BY v;
-- a statement of many rows takes no more memory than one of few
CREATE TABLE many (k int PRIMARY KEY, v bigint);
CREATE FUNCTION used() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts WHERE name = 'ExecutorState' $$;
INSERT INTO many SELECT i, CASE WHEN i IN (10000, 60000) THEN used() END FROM generate_series(1, 60000) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
SELECT max(v) < min(v) + 1000000 FROM many;
INSERT INTO many SELECT i, CASE WHEN i IN (10000, 60000) THEN used() END FROM generate_series(1, 60000) i ON CONFLICT (k) DO UPDATE SET v = excluded.v;
SELECT max(v) < min(v) + 1000000 FROM many;
DROP TABLE many;
-- Rows of the table that the statement locks: not those that it has replaced. (Read in the order of the key.)
CREATE TABLE locked (k int PRIMARY KEY, v text);
INSERT INTO locked SELECT i, 'old' FROM generate_series(1, 100) i;
SELECT settle('locked');
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
INSERT INTO locked SELECT k + 1, 'new' FROM (SELECT k FROM locked ORDER BY k FOR UPDATE) l ON CONFLICT (k) DO UPDATE SET v = excluded.v;
RESET ALL;
SELECT v, count(*), sum(k) FROM locked GROUP BY v ORDER BY v;
