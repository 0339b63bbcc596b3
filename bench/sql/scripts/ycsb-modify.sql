-- Read, modify, write.
\set z random_zipfian(1, :rows, 1.01)
\set n 1 + permute(:z - 1, :rows, 1)
\set new random(1, 1000000000)
BEGIN;
SELECT v FROM kv WHERE k = key(:n);
UPDATE kv SET v = value(:new) WHERE k = key(:n);
COMMIT;
