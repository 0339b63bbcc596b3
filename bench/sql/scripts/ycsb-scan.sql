\set z random_zipfian(1, :rows, 1.01)
\set n 1 + permute(:z - 1, :rows, 1)
\set length random(1, 100)
SELECT k, v FROM kv WHERE k >= key(:n) ORDER BY k LIMIT :length;
