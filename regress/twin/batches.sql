-- INSERT of many rows, whose rows may be appended together: nobody can tell, whatever happens on the way.
CREATE TABLE b (k int PRIMARY KEY, v text, d int DEFAULT 5);
INSERT INTO b SELECT i, 'v' || i FROM generate_series(1, 1000) i;
INSERT INTO b VALUES (2000, 'a'), (2001, 'b'), (2002, 'c');
SELECT count(*), sum(k), min(v), max(v), sum(d) FROM b;
-- rows of a statement are not seen by itself
INSERT INTO b SELECT k + 10000, v FROM b;
INSERT INTO b SELECT 30000 + count(*), 'counted' FROM b;
SELECT count(*), max(k) FROM b;
-- duplicates: of an old row, of one in the same batch, of one in an earlier batch; in order of appearance
INSERT INTO b SELECT i, 'x' FROM generate_series(40000, 41000) i UNION ALL SELECT 500, 'dup';
INSERT INTO b VALUES (50000, 'x'), (50001, 'y'), (50000, 'z'), (500, 'dup');
INSERT INTO b SELECT i % 300 + 60000, 'x' FROM generate_series(1, 301) i;
INSERT INTO b SELECT 70000 + i / 2, 'x' FROM generate_series(1, 3) i;
SELECT count(*) FROM b WHERE k >= 40000;
-- errors between
INSERT INTO b SELECT i, repeat('x', 100 / (i - 80090)) FROM generate_series(80000, 80200) i;
INSERT INTO b SELECT i, NULL, i FROM generate_series(80000, 80200) i WHERE i <> 80100 UNION ALL SELECT NULL, 'n', 1;
SELECT count(*) FROM b WHERE k >= 40000;
-- functions that look, from within the statement
CREATE FUNCTION seen(lowest int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN (SELECT count(*) FROM b WHERE k >= lowest); END $$;
CREATE FUNCTION seen_before(lowest int) RETURNS bigint LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN (SELECT count(*) FROM b WHERE k >= lowest); END $$;
INSERT INTO b SELECT i, 'seen', seen(90000) FROM generate_series(90000, 90199) i;
INSERT INTO b SELECT i, 'before', seen_before(91000) FROM generate_series(91000, 91199) i;
INSERT INTO b SELECT i, 'some', CASE WHEN i % 50 = 0 THEN seen(92000) END FROM generate_series(92000, 92199) i;
SELECT v, d, count(*), min(k) FROM b WHERE k >= 90000 GROUP BY v, d ORDER BY v, d, min(k);
CREATE FUNCTION add(which int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN INSERT INTO b SELECT which + i * 1000000, 'inner' FROM generate_series(1, 3) i; RETURN which; END $$;
INSERT INTO b SELECT i, 'outer', add(i) FROM generate_series(100000, 100099) i;
SELECT v, count(*), sum(k::bigint) FROM b WHERE v IN ('inner', 'outer') GROUP BY v ORDER BY v;
INSERT INTO b SELECT i, 'outer', add(i - 1000000) FROM generate_series(1100200, 1100210) i;
CREATE FUNCTION change(which int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN UPDATE b SET v = 'changed' WHERE k = which - 1; DELETE FROM b WHERE k = which - 2; RETURN which; END $$;
INSERT INTO b SELECT i, 'new', change(i) FROM generate_series(110000, 110099) i;
SELECT v, count(*), min(k), max(k) FROM b WHERE k BETWEEN 110000 AND 110099 GROUP BY v ORDER BY v;
-- functions that catch errors, from within the statement
CREATE FUNCTION tolerant(which int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO b VALUES (which, 'tolerated'), (1, 'a duplicate');
    RETURN 1;
EXCEPTION WHEN unique_violation THEN RETURN 2;
END $$;
INSERT INTO b SELECT i, 'tolerant', tolerant(i + 10000) FROM generate_series(120000, 120099) i;
SELECT v, d, count(*) FROM b WHERE k >= 120000 AND k < 200000 GROUP BY v, d ORDER BY v;
CREATE FUNCTION looking(which int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM count(*) FROM b WHERE k = which;
    RETURN 1 / (which % 7);
EXCEPTION WHEN unique_violation THEN RETURN 2; WHEN division_by_zero THEN RETURN 3;
END $$;
INSERT INTO b SELECT 140000 + i, 'looking', looking(i) FROM generate_series(1, 100) i;
SELECT v, d, count(*) FROM b WHERE k >= 140000 AND k < 200000 GROUP BY v, d ORDER BY v, d;
INSERT INTO b SELECT 150000 + i / 2, 'looking', looking(i) FROM generate_series(1, 100) i;
INSERT INTO b SELECT CASE WHEN i = 50 THEN 7 ELSE 150000 + i END, 'looking', looking(i) FROM generate_series(1, 100) i;
SELECT count(*) FROM b WHERE k >= 150000 AND k < 200000;
DO $$ BEGIN
    INSERT INTO b SELECT 160000 + i, 'kept' FROM generate_series(1, 100) i;
    BEGIN
        INSERT INTO b SELECT 160100 + i, 'lost' FROM generate_series(1, 100) i;
        INSERT INTO b SELECT 160201 - i, 'lost' FROM generate_series(1, 100) i;
    EXCEPTION WHEN unique_violation THEN
        INSERT INTO b SELECT 160300 + i, 'instead' FROM generate_series(1, 100) i;
    END;
END $$;
SELECT v, count(*) FROM b WHERE k >= 160000 AND k < 200000 GROUP BY v ORDER BY v;
BEGIN;
INSERT INTO b SELECT 170000 + i, 'kept' FROM generate_series(1, 70) i;
SAVEPOINT s;
INSERT INTO b SELECT 170100 + i, 'lost' FROM generate_series(1, 70) i;
INSERT INTO b SELECT 170200 + i / 60, 'lost' FROM generate_series(1, 70) i;
ROLLBACK TO s;
INSERT INTO b SELECT 170100 + i, 'again' FROM generate_series(1, 70) i;
COMMIT;
SELECT v, count(*) FROM b WHERE k >= 170000 AND k < 200000 GROUP BY v ORDER BY v;
-- what wants to know its rows at once
INSERT INTO b SELECT 180000 + i, 'r' FROM generate_series(1, 5) i RETURNING k, v, d;
WITH new AS (INSERT INTO b SELECT 181000 + i, 'r' FROM generate_series(1, 100) i RETURNING k) SELECT count(*), sum(k) FROM new;
WITH new AS (INSERT INTO b SELECT 182000 + i, 'r' FROM generate_series(1, 100) i RETURNING k)
    INSERT INTO b SELECT k + 1000, 's' FROM new;
SELECT v, count(*) FROM b WHERE k > 180000 AND k < 200000 GROUP BY v ORDER BY v;
CREATE TABLE seen_rows (k int, v text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen_rows VALUES (new.k, new.v); RETURN new; END $$;
CREATE TRIGGER note AFTER INSERT ON b FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO b SELECT 190000 + i, 't' FROM generate_series(1, 100) i;
SELECT count(*), sum(k) FROM seen_rows;
DROP TRIGGER note ON b;
CREATE FUNCTION count_new() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen_rows SELECT count(*), 'all' FROM new_rows; RETURN NULL; END $$;
CREATE TRIGGER count_new AFTER INSERT ON b REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_new();
INSERT INTO b SELECT 191000 + i, 't' FROM generate_series(1, 100) i;
SELECT k FROM seen_rows WHERE v = 'all';
DROP TRIGGER count_new ON b;
CREATE VIEW low AS SELECT * FROM b WHERE d < 10 WITH CHECK OPTION;
INSERT INTO low SELECT 192000 + i, 'view', i FROM generate_series(1, 9) i;
INSERT INTO low SELECT 193000 + i, 'view', i FROM generate_series(1, 90) i;
SELECT count(*) FROM b WHERE v = 'view';
-- other tables: no key, other unique indexes, generated and identity columns, partitions, large rows, zstd
CREATE TABLE plain (a int, b text);
INSERT INTO plain SELECT i % 10, 'p' FROM generate_series(1, 500) i;
SELECT a, count(*) FROM plain GROUP BY a ORDER BY a;
CREATE TABLE two (k int PRIMARY KEY, u int UNIQUE, g int GENERATED ALWAYS AS (k * 2) STORED, i int GENERATED ALWAYS AS IDENTITY, CHECK (u > 0));
INSERT INTO two (k, u) SELECT i, i FROM generate_series(1, 200) i;
INSERT INTO two (k, u) SELECT i, 300 - i FROM generate_series(201, 290) i;
INSERT INTO two (k, u) SELECT i, 300 - i FROM generate_series(201, 310) i;
SELECT count(*), sum(u), sum(g), sum(i) > 0 FROM two;
ALTER TABLE two DROP COLUMN u;
INSERT INTO two (k) SELECT i FROM generate_series(1001, 1200) i;
SELECT count(*), sum(g) FROM two;
CREATE TABLE child (k int PRIMARY KEY, t int REFERENCES two (k));
INSERT INTO child SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO child SELECT 1000 + i, 1150 + i FROM generate_series(1, 100) i;
SELECT count(*) FROM child;
CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200);
INSERT INTO parted SELECT i, 'p' FROM generate_series(0, 199) i;
INSERT INTO parted_1 SELECT i, 'q' FROM generate_series(-5, 5) i;
SELECT tableoid::regclass, count(*) FROM parted GROUP BY 1 ORDER BY 1;
CREATE TABLE wide (k int PRIMARY KEY, v text);
INSERT INTO wide SELECT i, repeat(md5(i::text), (i % 5) * 700) FROM generate_series(1, 130) i;
INSERT INTO wide SELECT i, repeat(md5(i::text), 40000) FROM generate_series(200, 203) i;
SELECT count(*), sum(length(v)), md5(string_agg(v, '' ORDER BY k)) FROM wide;
CREATE TEMP TABLE passing (k int PRIMARY KEY, v text);
INSERT INTO passing SELECT i, 't' FROM generate_series(1, 100) i;
SELECT count(*) FROM passing;
PREPARE many(int) AS INSERT INTO b SELECT 200000 + i, 'prepared' FROM generate_series($1, $1 + 99) i;
EXECUTE many(0);
EXECUTE many(100);
EXECUTE many(150);
EXECUTE many(200);
SELECT count(*) FROM b WHERE v = 'prepared';
-- who wins a key is decided once
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO b SELECT 300000 + i, 'serial' FROM generate_series(1, 100) i;
SELECT count(*) FROM b WHERE v = 'serial';
COMMIT;
DELETE FROM b WHERE v = 'serial';
INSERT INTO b SELECT 300000 + i, 'again' FROM generate_series(1, 100) i;
SELECT v, count(*) FROM b WHERE k > 300000 AND k < 400000 GROUP BY v;
-- of several errors the first row's comes first
CREATE TABLE first (k int PRIMARY KEY, v int CHECK (v < 100));
INSERT INTO first VALUES (3, 0);
\set VERBOSITY sqlstate
INSERT INTO first VALUES (3, 1), (4, 1000);
INSERT INTO first VALUES (4, 1000), (3, 1);
INSERT INTO first VALUES (3, 1), (NULL, 1);
INSERT INTO first VALUES (5, 1), (5, 1), (6, 1000);
INSERT INTO first SELECT i, 1 / (5 - i) FROM generate_series(3, 10) i;
INSERT INTO first SELECT i, 1 / (5 - i) FROM generate_series(4, 10) i;
INSERT INTO first SELECT i, 1 / (105 - i) FROM generate_series(101, 110) i;
CREATE FUNCTION refuses(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN IF i = 7 THEN RAISE EXCEPTION 'no' USING ERRCODE = 'U0001'; END IF; RETURN i; END $$;
INSERT INTO first SELECT refuses(i), 1 FROM generate_series(3, 10) i;
INSERT INTO first SELECT refuses(i), 1 FROM generate_series(4, 10) i;
\set VERBOSITY default
INSERT INTO first VALUES (3, 1), (4, 1000);
DO $$ DECLARE name text; state text; BEGIN
    INSERT INTO first VALUES (3, 1), (4, 1000);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS name = CONSTRAINT_NAME, state = RETURNED_SQLSTATE;
    RAISE NOTICE '% %', name, state;
END $$;
DO $$ DECLARE name text; state text; BEGIN
    INSERT INTO first VALUES (4, 1), (5, 1000);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS name = CONSTRAINT_NAME, state = RETURNED_SQLSTATE;
    RAISE NOTICE '% %', name, state;
END $$;
DO $$ BEGIN
    FOR i IN 1..3 LOOP
        BEGIN
            INSERT INTO first VALUES (20 + i, i), (3, 1), (4, 1000);
        EXCEPTION WHEN unique_violation THEN
            INSERT INTO first VALUES (30 + i, i), (40 + i, i);
        END;
    END LOOP;
END $$;
SELECT * FROM first ORDER BY k;
-- the row that is in the way goes while the statement runs: too late
CREATE FUNCTION makes_way(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN IF i = 4 THEN DELETE FROM first WHERE k = 3; END IF; RETURN i; END $$;
INSERT INTO first SELECT makes_way(i), 1 FROM generate_series(3, 5) i;
INSERT INTO first SELECT makes_way(i), 1 FROM generate_series(4, 5) i;
SELECT * FROM first ORDER BY k;
DROP TABLE first;

-- Errors of functions, of whatever kind: the duplicate of a row before is the one that counts.
CREATE TABLE kinds (k int PRIMARY KEY, v text);
INSERT INTO kinds VALUES (1, 'x');
CREATE SEQUENCE unused;
CREATE FUNCTION fails(i int, code text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
    IF i = 5 THEN RAISE EXCEPTION 'no' USING ERRCODE = code; END IF;
    RETURN i;
END $$;
INSERT INTO kinds SELECT i, CASE WHEN i = 5 THEN currval('unused')::text END FROM generate_series(1, 10) i;
INSERT INTO kinds SELECT i, fails(i, '55P03') FROM generate_series(1, 10) i;
INSERT INTO kinds SELECT i, fails(i, '55000') FROM generate_series(1, 10) i;
INSERT INTO kinds SELECT i, fails(i, '54000') FROM generate_series(1, 10) i;
INSERT INTO kinds SELECT i, fails(i, '25001') FROM generate_series(1, 10) i;
INSERT INTO kinds SELECT i, fails(i, '55000') FROM generate_series(2, 10) i;
DO $$ BEGIN
    INSERT INTO kinds SELECT i, CASE WHEN i = 5 THEN currval('unused')::text END FROM generate_series(1, 10) i;
EXCEPTION WHEN unique_violation THEN
    RAISE NOTICE 'a duplicate, as expected';
END $$;
CREATE TABLE long_keys (k text PRIMARY KEY);
INSERT INTO long_keys VALUES ('1');
\set VERBOSITY sqlstate
INSERT INTO long_keys SELECT CASE WHEN i = 5 THEN (SELECT string_agg(md5(j::text), '') FROM generate_series(1, 600) j) ELSE i::text END FROM generate_series(1, 10) i;
\set VERBOSITY default
SELECT * FROM kinds;

-- What a function raises, whatever its code, comes after the duplicate of an earlier row; what the server says does not.
CREATE TABLE raised (k int PRIMARY KEY, v int);
INSERT INTO raised VALUES (3, 3);
CREATE FUNCTION raises(i int, code text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF i > 4 THEN RAISE EXCEPTION 'mine' USING ERRCODE = code; END IF;
    RETURN i;
END $$;
INSERT INTO raised SELECT raises(i, '40001'), 1 FROM generate_series(1, 6) i;
INSERT INTO raised SELECT raises(i, 'XX000'), 1 FROM generate_series(1, 6) i;
INSERT INTO raised SELECT raises(i, '57014'), 1 FROM generate_series(4, 6) i;
SELECT * FROM raised;
DROP TABLE raised;
DROP FUNCTION raises;
