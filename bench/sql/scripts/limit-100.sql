\set n random(1, :rows)
SELECT k, v FROM kv WHERE k >= key(:n) ORDER BY k LIMIT 100;
