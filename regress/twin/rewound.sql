-- Cursors that go back, or begin anew, over rows that come in no certain order: each comes once.
CREATE TABLE q (k int PRIMARY KEY, v text);
CREATE FUNCTION settle(whole bool) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE c.oid = 'q'::regclass) = 'loosekv' THEN
        IF whole THEN PERFORM loosekv.compact('q'); ELSE PERFORM loosekv.flush('q'); END IF;
    END IF;
END $$;
CREATE FUNCTION fill() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM q;
    PERFORM settle(true);
    INSERT INTO q SELECT i, 'x' FROM generate_series(1, 1000) i;
    PERFORM settle(false);
    INSERT INTO q SELECT i, 'x' FROM generate_series(2001, 3000) i;
    PERFORM settle(false);
END $$;
SELECT fill();

CREATE TABLE seen (k int);
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE
    c CURSOR FOR SELECT * FROM q;
    i int := 0;
BEGIN
    FOR r IN c LOOP
        INSERT INTO seen VALUES (r.k);
        UPDATE q SET v = repeat('done', 200) WHERE k = r.k;
        i := i + 1;
        IF i % 500 = 0 THEN
            COMMIT;
            PERFORM settle(i = 1000);
        END IF;
    END LOOP;
END $$;
CALL work();
SELECT count(*), count(DISTINCT k) FROM seen;
SELECT count(*) FROM q WHERE v NOT LIKE 'done%';

-- The same row stands in the same place, forwards and backwards, whatever is merged meanwhile.
TRUNCATE q;
SELECT fill();
DO $$
DECLARE
    c refcursor;
    r record;
    place int;
    first int[] := '{}';
    again int[] := '{}';
    back int[] := '{}';
BEGIN
    OPEN c SCROLL FOR SELECT k FROM q;
    FOR place IN 1..2000 BY 97 LOOP
        FETCH ABSOLUTE place FROM c INTO r;
        first := first || r.k;
    END LOOP;
    PERFORM settle(true);
    MOVE ABSOLUTE 0 FROM c;
    FOR place IN 1..2000 BY 97 LOOP
        FETCH ABSOLUTE place FROM c INTO r;
        again := again || r.k;
    END LOOP;
    FETCH LAST FROM c INTO r;
    FOR place IN 1..2000 LOOP
        IF (2000 - place) % 97 = 0 THEN back := r.k || back; END IF;
        FETCH PRIOR FROM c INTO r;
    END LOOP;
    RAISE NOTICE 'the same again: %, backwards: %, all different: %', first = again, first = back,
        (SELECT count(DISTINCT k) FROM unnest(first) k) = cardinality(first);
END $$;
-- A nested loop reads a whole table again and again.
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_indexscan = off; SET enable_bitmapscan = off;
SELECT count(*), sum(q.k) FROM generate_series(1, 4) g JOIN q ON q.k % 4 = g % 4;
RESET ALL;

-- Ranges of TIDs.
CREATE TABLE tr (k int PRIMARY KEY);
INSERT INTO tr SELECT generate_series(1, 10);
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT k FROM tr WHERE ctid >= '(0,1)' AND ctid <= '(0,8)';
FETCH 3 FROM c;
FETCH BACKWARD 2 FROM c;
FETCH NEXT FROM c;
FETCH ALL FROM c;
FETCH NEXT FROM c;
FETCH BACKWARD ALL FROM c;
FETCH PRIOR FROM c;
FETCH NEXT FROM c;
FETCH LAST FROM c;
FETCH PRIOR FROM c;
FETCH FIRST FROM c;
FETCH ABSOLUTE -2 FROM c;
COMMIT;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT k FROM tr WHERE ctid > '(0,3)' AND ctid < '(0,3)';
FETCH NEXT FROM c;
FETCH PRIOR FROM c;
FETCH NEXT FROM c;
COMMIT;
DELETE FROM tr WHERE k IN (4, 5);
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT k FROM tr WHERE ctid >= '(0,2)' AND ctid <= '(0,6)';
FETCH 2 FROM c;
FETCH NEXT FROM c;
FETCH PRIOR FROM c;
FETCH ALL FROM c;
FETCH BACKWARD ALL FROM c;
COMMIT;

-- Memory does not grow with the number of times that a scan of keys begins anew.
CREATE TABLE many (k text PRIMARY KEY, n name, i int);
INSERT INTO many SELECT 'k' || i, 'k' || i, i FROM generate_series(1, 1000) i;
CREATE TABLE numbers (k int PRIMARY KEY, v int);
INSERT INTO numbers SELECT i, i FROM generate_series(1, 1000) i;
ANALYZE many, numbers;
CREATE FUNCTION peak() RETURNS int LANGUAGE sql AS $$ SELECT (regexp_match(pg_read_file('/proc/self/status'), 'VmHWM:\s*(\d+)'))[1]::int $$;
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_memoize = off; SET enable_bitmapscan = off;
SET max_parallel_workers_per_gather = 0; SET enable_material = off;
SELECT peak() AS before \gset
SELECT count(*) FROM generate_series(1, 200000) g, LATERAL (SELECT v FROM numbers WHERE k = ANY (ARRAY[g, g + 1, g + 2, g + 3, g + 4, g + 5])) x;
SELECT count(*) FROM generate_series(1, 100) g, many a, LATERAL (SELECT i FROM many b WHERE b.k = a.n) x;
SELECT peak() - :before < 12000 AS flat;
