-- DELETE of many rows, whose tombstones may be appended together: nobody can tell, whatever happens on the way.
CREATE TABLE d (k int PRIMARY KEY, v int, t text);
CREATE FUNCTION fill() RETURNS void LANGUAGE sql AS $$ TRUNCATE d; INSERT INTO d SELECT i, i % 100, 't' || i FROM generate_series(1, 1000) i $$;
SELECT fill();
CREATE FUNCTION left_over() RETURNS TABLE (n bigint, total bigint, lowest int, highest int) LANGUAGE sql AS $$ SELECT count(*), sum(k), min(k), max(k) FROM d $$;
DELETE FROM d WHERE v < 10;
SELECT * FROM left_over();
DELETE FROM d WHERE k IN (15, 16, 17, 15, 5000);
DELETE FROM d WHERE k = 20;
DELETE FROM d;
SELECT * FROM left_over();
-- a row that is found twice, or was changed before
SELECT fill();
DELETE FROM d USING generate_series(1, 300) i WHERE d.v = i % 7;
DELETE FROM d USING d e WHERE d.v = e.v AND e.k < 900;
SELECT * FROM left_over();
SELECT fill();
BEGIN;
UPDATE d SET t = 'changed' WHERE k % 3 = 0;
UPDATE d SET k = k + 10000 WHERE k % 5 = 0;
SELECT count(*) FROM (SELECT 1 FROM d WHERE k % 7 = 0 FOR UPDATE) x;
DELETE FROM d WHERE v < 50;
SELECT * FROM left_over();
INSERT INTO d SELECT i, 0, 'again' FROM generate_series(1, 9) i;
DELETE FROM d WHERE t = 'again' OR v > 80;
SELECT * FROM left_over();
COMMIT;
INSERT INTO d SELECT i, 0, 'again' FROM generate_series(1, 9) i;
SELECT * FROM left_over();
-- rows of the table that the statement locks: not those that it has deleted; read in the order of the key
SELECT fill();
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
DELETE FROM d USING (SELECT k FROM d WHERE k <= 100 ORDER BY k FOR UPDATE) e WHERE d.k = e.k + 1;
DELETE FROM d USING (SELECT k FROM d WHERE k BETWEEN 201 AND 300 ORDER BY k FOR KEY SHARE SKIP LOCKED) e WHERE d.k = e.k + 1;
RESET ALL;
SELECT v, count(*), sum(k) FROM d GROUP BY v HAVING count(*) < 10 ORDER BY v;
SELECT * FROM left_over();
-- savepoints
SELECT fill();
BEGIN;
DELETE FROM d WHERE k <= 100;
SAVEPOINT a;
DELETE FROM d WHERE k <= 200;
SELECT * FROM left_over();
DELETE FROM d WHERE 1 / (k - 290) < 2;
ROLLBACK TO a;
SELECT * FROM left_over();
DELETE FROM d WHERE k <= 150;
COMMIT;
SELECT * FROM left_over();
-- functions that look, or change, from within the statement; they begin with every statement of theirs to see what is done so far
SELECT fill();
CREATE FUNCTION rows_now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN (SELECT count(*) FROM d); END $$;
CREATE FUNCTION rows_then() RETURNS bigint LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN (SELECT count(*) FROM d); END $$;
DELETE FROM d WHERE k > 900 AND rows_now() > 950;
SELECT * FROM left_over();
DELETE FROM d WHERE k > 800 AND rows_then() > 920;
SELECT * FROM left_over();
CREATE FUNCTION take(which int) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$ BEGIN DELETE FROM d WHERE k IN (which + 1, which - 1); RETURN true; END $$;
DELETE FROM d WHERE k <= 90 AND take(k);
SELECT * FROM left_over();
CREATE FUNCTION put(which int) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO d VALUES (which - 1, -1, 'put') ON CONFLICT (k) DO UPDATE SET v = -2;
    RETURN true;
EXCEPTION WHEN OTHERS THEN RETURN false;
END $$;
DELETE FROM d WHERE k BETWEEN 300 AND 400 AND put(k);
SELECT v, t, count(*), min(k), max(k) FROM d WHERE v < 0 GROUP BY v, t ORDER BY v, t;
CREATE FUNCTION fails_at(which int, bad int) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM d WHERE k = which + 1;
    RETURN 1 / (which - bad) IS NOT NULL;
EXCEPTION WHEN division_by_zero THEN RETURN true;
END $$;
DELETE FROM d WHERE k BETWEEN 500 AND 600 AND fails_at(k, 550);
SELECT * FROM left_over();
DO $$ BEGIN
    DELETE FROM d WHERE k < 650;
    BEGIN
        DELETE FROM d WHERE 1 / (k - 750) < 2;
    EXCEPTION WHEN division_by_zero THEN
        DELETE FROM d WHERE k > 780;
    END;
END $$;
SELECT * FROM left_over();
-- what wants to know its rows at once
SELECT fill();
DELETE FROM d WHERE k <= 3 RETURNING *;
WITH gone AS (DELETE FROM d WHERE k <= 200 RETURNING k) SELECT count(*), sum(k) FROM gone;
WITH gone AS (DELETE FROM d WHERE k <= 300) DELETE FROM d WHERE k > 800;
WITH gone AS (DELETE FROM d WHERE k <= 400 RETURNING *) INSERT INTO d SELECT k - 10000, v, t FROM gone;
SELECT * FROM left_over();
CREATE TABLE noted (k int, t text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO noted SELECT old.k, count(*) FROM d; RETURN old; END $$;
CREATE TRIGGER note AFTER DELETE ON d FOR EACH ROW WHEN (old.k % 10 = 0) EXECUTE FUNCTION note();
DELETE FROM d WHERE k BETWEEN 1 AND 500;
SELECT * FROM noted ORDER BY k;
DROP TRIGGER note ON d;
CREATE FUNCTION count_gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO noted SELECT count(*), 'all' FROM gone; RETURN NULL; END $$;
CREATE TRIGGER count_gone AFTER DELETE ON d REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_gone();
DELETE FROM d WHERE k BETWEEN 501 AND 600;
SELECT k FROM noted WHERE t = 'all';
DROP TRIGGER count_gone ON d;
-- other tables: no key, other indexes, referenced, partitions, temporary
CREATE TABLE plain (a int, b text);
INSERT INTO plain SELECT i % 10, 'p' FROM generate_series(1, 500) i;
DELETE FROM plain WHERE a < 5;
SELECT a, count(*) FROM plain GROUP BY a ORDER BY a;
CREATE TABLE two (k int PRIMARY KEY, u int UNIQUE, x text);
CREATE INDEX ON two (x);
INSERT INTO two SELECT i, i, 'x' || i % 9 FROM generate_series(1, 300) i;
DELETE FROM two WHERE x = 'x3';
DELETE FROM two WHERE u BETWEEN 100 AND 200;
INSERT INTO two SELECT i, i, 'y' FROM generate_series(120, 130) i;
INSERT INTO two VALUES (1000, 125, 'a duplicate');
SELECT x, count(*), sum(u) FROM two GROUP BY x ORDER BY x;
CREATE TABLE child (k int PRIMARY KEY, t int REFERENCES two (k) ON DELETE CASCADE);
INSERT INTO child SELECT i, i FROM generate_series(1, 90) i WHERE i % 9 <> 3;
DELETE FROM two WHERE k <= 50;
SELECT count(*) FROM child;
CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200);
INSERT INTO parted SELECT i, 'p' FROM generate_series(0, 199) i;
DELETE FROM parted WHERE k % 3 = 0;
DELETE FROM parted_1 WHERE k > 50;
DELETE FROM parted WHERE k BETWEEN 110 AND 150;
SELECT tableoid::regclass, count(*) FROM parted GROUP BY 1 ORDER BY 1;
CREATE TEMP TABLE passing (k int PRIMARY KEY, v text);
INSERT INTO passing SELECT i, 't' FROM generate_series(1, 100) i;
DELETE FROM passing WHERE k % 2 = 0;
SELECT count(*) FROM passing;
-- cursors, prepared statements, levels
BEGIN;
DECLARE c CURSOR FOR SELECT k FROM d ORDER BY k;
FETCH 2 FROM c;
DELETE FROM d WHERE k < 900;
FETCH 2 FROM c;
DELETE FROM d WHERE CURRENT OF c;
ROLLBACK;
PREPARE gone(int) AS DELETE FROM d WHERE k BETWEEN $1 AND $1 + 40;
EXECUTE gone(600);
EXECUTE gone(620);
BEGIN ISOLATION LEVEL SERIALIZABLE;
DELETE FROM d WHERE k > 980;
SELECT * FROM left_over();
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
DELETE FROM d WHERE k > 970;
SELECT * FROM left_over();
ROLLBACK;
SELECT * FROM left_over();
