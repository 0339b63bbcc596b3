-- COPY in and out, in every format, with every kind of trouble.
CREATE TABLE t (k int PRIMARY KEY, v text, n numeric, a int[], d date);
COPY t FROM STDIN;
1	one	1.5	{1,2}	2026-01-01
3	\N	\N	\N	\N
2	a\tb\\c\nd	-0.0001	{}	1999-12-31
\.
COPY t FROM STDIN WITH (FORMAT csv, HEADER);
k,v,n,a,d
4,"with ""quotes"", and comma",4,"{4,NULL}",2000-02-29
5,,,,
\.
COPY t (v, k) FROM STDIN WITH (DELIMITER '|', NULL 'none');
six|6
none|7
\.
COPY (SELECT * FROM t ORDER BY k) TO STDOUT;
COPY (SELECT * FROM t ORDER BY k DESC) TO STDOUT WITH (FORMAT csv, HEADER, FORCE_QUOTE *);
COPY t FROM STDIN;
8	eight	8	\N	\N
1	again	1	\N	\N
9	nine	9	\N	\N
\.
SELECT count(*) FROM t WHERE k > 7;
COPY t FROM STDIN;
8	eight	8	\N	\N
8	in the same copy	8	\N	\N
\.
COPY t FROM STDIN;
8	eight	not a number	\N	\N
\.
COPY t FROM STDIN;
\N	no key	1	\N	\N
\.
SELECT count(*) FROM t WHERE k > 7;
COPY t FROM STDIN WHERE k % 2 = 0;
10	ten	\N	\N	\N
11	eleven	\N	\N	\N
12	twelve	\N	\N	\N
\.
SELECT k FROM t WHERE k >= 10 ORDER BY k;
BEGIN;
CREATE TABLE fresh (k int PRIMARY KEY, v text);
COPY fresh FROM STDIN WITH (FREEZE);
2	two
1	one
\.
SELECT * FROM fresh ORDER BY k;
SAVEPOINT s;
COPY fresh FROM STDIN;
3	three
1	dup
\.
ROLLBACK TO s;
COMMIT;
SELECT * FROM fresh ORDER BY k;
-- many rows there and back
CREATE TABLE many (k bigint PRIMARY KEY, v text, w text);
CREATE INDEX ON many (w);
INSERT INTO many SELECT (i * 7919) % 20011, repeat('x', i % 300), 'w' || i % 100 FROM generate_series(1, 20000) i;
SELECT '/tmp/loosekv_twin_' || pg_backend_pid() AS file \gset
\set ECHO none
COPY (SELECT * FROM many ORDER BY k) TO :'file' WITH (FORMAT binary);
TRUNCATE many;
COPY many FROM :'file' WITH (FORMAT binary);
COPY many (k, v, w) FROM :'file' WITH (FORMAT binary);
\set remove 'cat > /dev/null; rm -f ' :file
COPY (SELECT 1) TO PROGRAM :'remove';
\set ECHO all
SELECT count(*), sum(k), sum(length(v)) FROM many;
SET enable_seqscan = off;
SELECT count(*) FROM many WHERE w = 'w42';
RESET enable_seqscan;
-- triggers and partitions on the way in
CREATE FUNCTION tg() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.v = 'skip' THEN RETURN NULL; END IF;
    new.v := upper(new.v);
    RETURN new;
END $$;
CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts2 PARTITION OF parts FOR VALUES FROM (10) TO (20) USING heap;
CREATE TRIGGER tg BEFORE INSERT ON parts1 FOR EACH ROW EXECUTE FUNCTION tg();
COPY parts FROM STDIN;
1	a
11	b
2	skip
12	c
3	d
\.
SELECT tableoid::regclass, * FROM parts ORDER BY k;
COPY parts FROM STDIN;
4	e
99	nowhere
\.
COPY parts FROM STDIN;
4	e
11	dup
\.
SELECT count(*) FROM parts;
-- a key that is too long: the errors of the rows before it come first, and its own names its line
CREATE TABLE words (w text COLLATE "C" PRIMARY KEY);
INSERT INTO words VALUES ('there');
CREATE FUNCTION copy_words(program text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE place text;
BEGIN
    EXECUTE format('COPY words FROM PROGRAM %L', program);
    RETURN 'copied';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS place = PG_EXCEPTION_CONTEXT;
    RETURN concat_ws(' ', sqlstate, substring(place FROM 'COPY words, line \d+'));
END $$;
SELECT copy_words('echo new; echo there; seq 1 5000 | tr -d "\n"; echo; echo other');
SELECT copy_words('echo new; seq 1 5000 | tr -d "\n"; echo; echo there; echo other');
SELECT copy_words('echo new; echo other');
SELECT * FROM words ORDER BY w;
