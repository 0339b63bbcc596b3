-- What dump.sh dumps: one of everything.
SET client_min_messages = warning;
CREATE EXTENSION loosekv;
SET default_table_access_method = loosekv;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE kinds (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE, parent int REFERENCES kinds);
INSERT INTO kinds (name, parent) SELECT 'kind ' || i, nullif(i / 2, 0) FROM generate_series(1, 50) i;
CREATE TABLE items (k bigint, name text NOT NULL, tag text, kind int REFERENCES kinds ON DELETE RESTRICT, m mood, d date,
    twice bigint GENERATED ALWAYS AS (k * 2) STORED, body text, arr int[], j jsonb, CHECK (k > 0));
INSERT INTO items (k, name, tag, kind, m, d, body, arr, j)
    SELECT i, 'item' || i, 't' || i % 100, i % 50 + 1, 'ok', date '2026-01-01' + i % 300, repeat(md5(i::text), i % 100), ARRAY[i, -i], jsonb_build_object('i', i)
    FROM generate_series(1, 3000) i ORDER BY md5(i::text);
ALTER TABLE items ADD PRIMARY KEY (k);
CREATE INDEX items_tag ON items (tag);
CREATE INDEX items_lower ON items (lower(name)) WHERE k > 100;
CREATE INDEX items_arr ON items USING gin (arr);
CREATE UNIQUE INDEX items_u ON items (name, k) INCLUDE (d);
CREATE TABLE pairs (a text COLLATE "C", b uuid, n numeric, PRIMARY KEY (a, b) INCLUDE (n));
INSERT INTO pairs SELECT 'a' || i % 7, md5(i::text)::uuid, i / 3.0 FROM generate_series(1, 500) i;
CREATE TABLE no_key (v text, n int);
INSERT INTO no_key SELECT 'v', i % 10 FROM generate_series(1, 100) i;
CREATE TABLE twin (k int PRIMARY KEY, item bigint REFERENCES items) USING heap;
INSERT INTO twin SELECT i, i FROM generate_series(1, 100) i;
CREATE UNLOGGED TABLE passing (k int PRIMARY KEY);
INSERT INTO passing SELECT generate_series(1, 10);
CREATE TABLE parts (k int, r text, v int, PRIMARY KEY (k, r)) PARTITION BY LIST (r);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b') USING heap;
CREATE TABLE parts_rest PARTITION OF parts DEFAULT PARTITION BY HASH (k);
CREATE TABLE parts_rest0 PARTITION OF parts_rest FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts_rest1 PARTITION OF parts_rest FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE INDEX parts_v ON parts (v);
INSERT INTO parts SELECT i, chr(97 + i % 4), i FROM generate_series(1, 200) i;
ALTER TABLE items CLUSTER ON items_tag;
ALTER TABLE pairs REPLICA IDENTITY FULL;
CREATE MATERIALIZED VIEW sums AS SELECT tag, count(*) AS n FROM items GROUP BY tag;
CREATE UNIQUE INDEX sums_tag ON sums (tag);
CREATE VIEW seen AS SELECT k, name FROM items WHERE k < 10;
CREATE FUNCTION tg() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$;
CREATE TRIGGER tg BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION tg();
ALTER TABLE items ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_of_it ON items USING (true);
UPDATE items SET body = body || '!' WHERE k % 10 = 0;
DELETE FROM pairs WHERE n > 160;
