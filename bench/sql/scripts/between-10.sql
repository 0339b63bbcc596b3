\set n random(1, :rows - 10)
SELECT v FROM kv WHERE k BETWEEN key(:n) AND key(:n + 9);
