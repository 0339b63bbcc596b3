-- Scans that rest, end early or fail: what they keep pinned is given back once, and by its owner.
CREATE TABLE p (k int PRIMARY KEY, v text, n numeric);
INSERT INTO p SELECT i, repeat(chr(97 + i % 26), 100), i * 1.5 FROM generate_series(1, 4000) i;
VACUUM p;

-- A cursor rests in one subtransaction and goes on in others, some of which are rolled back.
BEGIN;
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT k, left(v, 3), n FROM p WHERE k <= 3;
FETCH 1 FROM c;
SAVEPOINT b;
FETCH 1 FROM c;
SELECT 1 / 0;
ROLLBACK TO b;
RELEASE a;
SAVEPOINT d;
FETCH 1 FROM c;
ROLLBACK TO d;
FETCH 1 FROM c;
COMMIT;

-- A cursor whose subtransaction is rolled back.
BEGIN;
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT count(*) OVER (), k FROM p;
FETCH 0 FROM c;
DECLARE d NO SCROLL CURSOR FOR SELECT v FROM p;
MOVE 100 IN d;
ROLLBACK TO a;
FETCH 1 FROM d;
ROLLBACK;

-- An error and an early end in the middle of a scan.
SELECT count(10 / (k - 2000)) FROM p;
SELECT count(*) FROM (SELECT v FROM p LIMIT 50) x;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM p;
MOVE 77 IN c;
SELECT 1 / 0;
ROLLBACK;

-- Subtransactions that end while a scan goes on.
DO $$
DECLARE r record; good int := 0; bad int := 0;
BEGIN
    FOR r IN SELECT k, v, n FROM p LOOP
        BEGIN
            IF r.k % 7 = 0 THEN
                PERFORM count(*) FROM p WHERE 1 / (k - r.k) > 0;
            END IF;
            good := good + length(r.v);
        EXCEPTION WHEN division_by_zero THEN
            bad := bad + 1;
        END;
        EXIT WHEN good > 20000;
    END LOOP;
    RAISE NOTICE '% %', good > 20000, bad > 0;
END $$;

-- More scans at once than pins are kept.
SELECT count(*), sum(length(a.v)), min(z.n)
FROM p a, p b, p c, p d, p e, p f, p g, p h, p z
WHERE a.k = b.k AND b.k = c.k AND c.k = d.k AND d.k = e.k AND e.k = f.k AND f.k = g.k AND g.k = h.k AND h.k = z.k;
BEGIN;
SELECT count(*) FROM generate_series(1, 60) i, LATERAL (SELECT set_config('pins.dummy', i::text, true)) x;
DO $$ BEGIN FOR i IN 1..60 LOOP EXECUTE format('DECLARE c%s CURSOR FOR SELECT k, v FROM p', i); EXECUTE format('MOVE %s IN c%s', i, i); END LOOP; END $$;
MOVE 1 IN c1;
CLOSE c5;
CLOSE c50;
COMMIT;

-- Rows that stay behind when the scan has gone on.
SELECT (array_agg(p ORDER BY k))[1:2] FROM p WHERE k <= 5;
SELECT k, v = lag(v, 26) OVER (ORDER BY k) AS same FROM p WHERE k BETWEEN 25 AND 29 ORDER BY k;
WITH x AS MATERIALIZED (SELECT p, k FROM p) SELECT (x.p).n FROM x WHERE k IN (1, 4000) ORDER BY k;
SELECT p.*, tableoid::regclass, xmin IS NOT NULL FROM p WHERE k = 3999;
CREATE TABLE copied AS SELECT * FROM p;
SELECT count(*) FROM (SELECT * FROM copied EXCEPT ALL SELECT * FROM p) x;
UPDATE p SET n = n + 1 FROM (SELECT k AS other, n AS by FROM p) o WHERE p.k = o.other AND o.by > 5990;
SELECT sum(n) FROM p;
DROP TABLE p, copied;
