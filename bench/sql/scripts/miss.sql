-- A key that was never there.
\set n 2000000000 + random(1, 1000000000)
SELECT v FROM kv WHERE k = key(:n);
