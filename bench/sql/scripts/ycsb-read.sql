-- Zipfian choice, scattered over the keys.
\set z random_zipfian(1, :rows, 1.01)
\set n 1 + permute(:z - 1, :rows, 1)
SELECT v FROM kv WHERE k = key(:n);
