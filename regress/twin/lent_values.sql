-- Values that a row has given out stay where they are while more of its columns are asked for, whatever has to be moved for these.
SET jit = off;
CREATE TABLE t (k text COLLATE "C" PRIMARY KEY, d interval, j jsonb);
INSERT INTO t SELECT 'key ' || lpad(i::text, 6, '0'), i * interval '1 second', jsonb_build_object('i', i, 'x', repeat('x', 100 + i % 700)) FROM generate_series(1, 4000) i;
CREATE TABLE u (k uuid PRIMARY KEY, d interval, j jsonb);
INSERT INTO u SELECT ('00000000-0000-0000-0000-' || lpad(i::text, 12, '0'))::uuid, i * interval '1 second', jsonb_build_object('i', i, 'x', repeat('x', 100 + i % 700)) FROM generate_series(1, 4000) i;
CREATE TABLE n (a name, b text COLLATE "C", f bool, v numeric[], d interval, PRIMARY KEY (a, b));
INSERT INTO n SELECT 'n' || i % 7, 'b' || i, i % 2 = 0, array_fill(i::numeric / 7, ARRAY[i % 9 + 1]), i * interval '1 hour' FROM generate_series(1, 1000) i;
CREATE TABLE m (k text COLLATE "C" NOT NULL, n int NOT NULL, PRIMARY KEY (k, n));
INSERT INTO m SELECT 'key ' || lpad(i::text, 6, '0'), n FROM generate_series(1, 1000) i, generate_series(1, 3) n;
VACUUM ANALYZE t, u, n, m;
SELECT count(*) FROM (SELECT k, t FROM t OFFSET 0) x WHERE (x.t).k = x.k;
SELECT count(*) FROM (SELECT k, u FROM u OFFSET 0) x WHERE (x.u).k = x.k;
SELECT count(*) FROM (SELECT a, b, n FROM n OFFSET 0) x WHERE (x.n).a = x.a AND (x.n).b = x.b;
SELECT count(*), md5(string_agg(k || y, ',' ORDER BY y)) FROM (SELECT k, t::text AS y FROM t OFFSET 0) x;
SELECT count(*), md5(string_agg(a || b || y, ',' ORDER BY y)) FROM (SELECT a, b, n::text AS y FROM n OFFSET 0) x;
SELECT count(*) FROM t WHERE k > 'key 000100' AND (t.*)::text LIKE '%' || k || '%';
-- joins hold on to the keys of their outer rows
SET enable_hashjoin = off; SET enable_nestloop = off; SET enable_sort = off; SET enable_seqscan = off;
SELECT count(*), md5(string_agg(x::text, ',' ORDER BY k, n)) FROM (SELECT t.*, m.n FROM t JOIN m ON m.k = t.k OFFSET 0) x;
SELECT count(*), md5(string_agg(x::text, ',' ORDER BY k)) FROM (SELECT a.*, b.d AS bd, b.j AS bj FROM u a JOIN u b ON a.k = b.k OFFSET 0) x;
SELECT count(*), md5(string_agg(x::text, ',' ORDER BY a, b)) FROM (SELECT l.*, r.v AS rv FROM n l JOIN n r ON l.a = r.a AND l.b = r.b OFFSET 0) x;
RESET ALL;
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_memoize = off; SET enable_material = off; SET enable_bitmapscan = off;
SELECT count(*), md5(string_agg(x::text, ',' ORDER BY k, n)) FROM (SELECT t.*, m.n FROM t JOIN m ON m.k = t.k OFFSET 0) x;
RESET ALL;
-- a row that is replaced unread, of which more is asked after all
INSERT INTO t SELECT k, d, '{}' FROM t ON CONFLICT (k) DO UPDATE SET j = excluded.j WHERE t.k < 'key 000500' AND t.d > interval '10 seconds';
SELECT count(*), md5(string_agg(t::text, ',' ORDER BY k)) FROM t;
UPDATE t SET d = '1 hour', j = '[]' WHERE k < 'key 000030' RETURNING k, t;
DROP TABLE t, u, n, m;
