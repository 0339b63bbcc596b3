\set n random(1, :rows)
SELECT v FROM kv WHERE k = key(:n);
