-- BRIN is built of rows in the order of their TIDs, whatever order the table is in.
CREATE TABLE b (k int PRIMARY KEY, d int, r int);
INSERT INTO b SELECT (i * 7919) % 100003, i, (i * 31) % 1009 FROM generate_series(1, 60000) i;
CREATE INDEX b_d ON b USING brin (d) WITH (pages_per_range = 1);
CREATE INDEX b_r ON b USING brin (r int4_minmax_multi_ops) WITH (pages_per_range = 2);
CREATE INDEX b_bloom ON b USING brin (r int4_bloom_ops) WITH (pages_per_range = 4);
CREATE FUNCTION counts() RETURNS TABLE (range text, rows bigint) LANGUAGE plpgsql AS $$
DECLARE low int;
BEGIN
    SET LOCAL enable_seqscan = off;
    FOREACH low IN ARRAY ARRAY[1, 100, 255, 20000, 40000, 59900, 1000100, 1040000] LOOP
        RETURN QUERY SELECT 'd from ' || low, count(*) FROM b WHERE d BETWEEN low AND low + 99;
    END LOOP;
    FOREACH low IN ARRAY ARRAY[0, 17, 500, 1008, 2000] LOOP
        RETURN QUERY SELECT 'r = ' || low, count(*) FROM b WHERE r = low;
    END LOOP;
END $$;
SELECT * FROM counts();
UPDATE b SET d = d + 1000000 WHERE k % 3 = 0;
DELETE FROM b WHERE k % 11 = 0;
SELECT * FROM counts();
REINDEX TABLE b;
SELECT * FROM counts();
VACUUM b;
SELECT * FROM counts();
VACUUM FULL b;
SELECT * FROM counts();
ALTER TABLE b ALTER r TYPE bigint;
SELECT * FROM counts();
INSERT INTO b SELECT i, i, i % 1009 FROM generate_series(200001, 206000) i;
REINDEX INDEX CONCURRENTLY b_d;
SELECT * FROM counts();

CREATE TABLE keyless (d int);
INSERT INTO keyless SELECT generate_series(1, 60000);
UPDATE keyless SET d = d + 100000 WHERE d % 2 = 0;
CREATE INDEX ON keyless USING brin (d) WITH (pages_per_range = 1);
SET enable_seqscan = off;
SELECT count(*) FROM keyless WHERE d BETWEEN 100 AND 199;
SELECT count(*) FROM keyless WHERE d BETWEEN 100100 AND 100199;
