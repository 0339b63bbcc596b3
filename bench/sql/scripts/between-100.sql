\set n random(1, :rows - 100)
SELECT v FROM kv WHERE k BETWEEN key(:n) AND key(:n + 99);
