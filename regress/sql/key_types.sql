-- Keys of every type: loosekv must return the same rows in the same order as heap with a btree, find each by equality, and
-- refuse the same duplicates.

CREATE SCHEMA key_types;
SET search_path = key_types, public;
SET timezone = 'America/New_York';
SET extra_float_digits = 1;

CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
ALTER TYPE mood ADD VALUE 'gloomy' BEFORE 'ok';
CREATE DOMAIN small AS integer CHECK (VALUE < 100000);

-- Values of each type as text: the least and the greatest, those that differ little, and those whose bytes are awkward.
CREATE TABLE key_values (id serial, type text, vals text[]);
INSERT INTO key_values (type, vals) VALUES
  ('smallint', '{-32768,-32767,-256,-255,-1,0,1,127,128,255,256,32766,32767}'),
  ('integer', '{-2147483648,-65537,-65536,-1,0,1,255,256,65535,65536,16777216,2147483647}'),
  ('small', '{-2147483648,-1,0,1,99999}'),
  ('bigint', '{-9223372036854775808,-4294967297,-4294967296,-1,0,1,4294967295,4294967296,9223372036854775807}'),
  ('oid', '{0,1,255,256,2147483647,2147483648,4294967295}'),
  ('regclass', '{pg_class,pg_type,pg_proc}'),
  ('boolean', '{t,f}'),
  ('"char"', '{a,b,A," ","",z,\377,\200,\177}'),
  ('money', '{-92233720368547758.08,-1,0,0.01,1,92233720368547758.07}'),
  ('pg_lsn', '{0/0,0/1,0/FFFFFFFF,1/0,FFFFFFFF/FFFFFFFF}'),
  ('xid8', '{0,1,4294967295,4294967296,18446744073709551615}'),
  ('tid', '{"(0,0)","(0,1)","(0,65535)","(1,0)","(65535,7)","(65536,1)","(4294967295,65535)"}'),
  ('real', '{-Infinity,-3.4028235e38,-1.5,-1,-1e-45,0,1e-45,1,1.0000001,1.5,3.4028235e38,Infinity,NaN}'),
  ('double precision', '{-Infinity,-1.7976931348623157e308,-1,-5e-324,-0,5e-324,0.1,1,1.0000000000000002,1e300,Infinity,NaN}'),
  ('numeric', '{-Infinity,-1e1000,-1e5,-99999999999999999999.5,-10000,-9999,-1.0001,-1,-0.9999,-0.0001,-1e-1000,0.000,1e-1000,
     0.00000001,0.0001,0.00010001,0.1,0.9999,1,1.00000001,1.0001,1.00010001,1.1,9,10,99,100,9999,9999.9999,10000,10000.0001,10001,
     99999999,100000000,1e5,1e20,12345678901234567890.123456789,1e240,1e244,1e248,1e1000,1e100000,Infinity,NaN}'),
  ('numeric(10,2)', '{-99999999.99,-0.01,0,0.01,0.10,1,10,99999999.99}'),
  ('date', '{-infinity,4713-01-01 BC,0001-12-31 BC,0001-01-01,1999-12-31,2000-01-01,2000-01-02,2024-02-29,5874897-12-31,infinity}'),
  ('time', '{00:00,00:00:00.000001,11:59:59.999999,12:00,23:59:59.999999,24:00}'),
  ('timetz', '{00:00+00,00:00+15:59:59,00:00-15:59:59,12:00+00,12:00:00.000001+00,13:00+01,11:00-01,24:00-12,24:00+00,05:30+05:30}'),
  ('timestamp', '{-infinity,4713-01-01 BC,1999-12-31 23:59:59.999999,2000-01-01,2000-01-01 00:00:00.000001,294276-12-31 23:59:59.999999,infinity}'),
  ('timestamptz', '{-infinity,4713-01-02 BC,1999-12-31 23:59:59.999999+00,2000-01-01+00,2000-01-01+01,294276-12-31 00:00+00,infinity}'),
  ('interval', '{-178000000 years,-1 month -1 day,-32 days,-1 month,-29 days -25 hours,-1 microsecond,0,1 microsecond,23:59:59.999999,1 day,
     29 days 24:00:00.000001,1 month 1 day,32 days,1 year,361 days,178000000 years}'),
  ('uuid', '{00000000-0000-0000-0000-000000000000,00000000-0000-0000-0000-000000000001,7fffffff-ffff-ffff-ffff-ffffffffffff,
     80000000-0000-0000-0000-000000000000,ffffffff-ffff-ffff-ffff-ffffffffffff,01020304-0506-0708-090a-0b0c0d0e0f10}'),
  ('bytea', '{"","\\\\x00","\\\\x0000","\\\\x000000","\\\\x0001","\\\\x00ff","\\\\x01","\\\\x0100","\\\\x61","\\\\x6100","\\\\x610000","\\\\x610001",
     "\\\\x6161","\\\\xfe","\\\\xff","\\\\xff00","\\\\xffff"}'),
  ('bit(9)', '{000000000,000000001,100000000,101010101,111111111}'),
  ('varbit', '{"",0,00,1,10,01,00000000,000000000,11111111,111111110,111111111}'),
  ('macaddr', '{00:00:00:00:00:00,00:00:00:00:00:01,7f:ff:ff:ff:ff:ff,80:00:00:00:00:00,ff:ff:ff:ff:ff:ff}'),
  ('macaddr8', '{00:00:00:00:00:00:00:00,00:00:00:00:80:00:00:00,80:00:00:00:00:00:00:00,ff:ff:ff:ff:ff:ff:ff:ff}'),
  ('inet', '{0.0.0.0/0,9.9.9.9/0,10.0.0.0/8,10.5.0.1/8,10.5.0.0/13,10.0.0.0/16,10.0.0.7/16,10.0.0.0,10.0.0.1,11.0.0.0/8,255.255.255.255,
     ::/0,::1,::ffff:1.2.3.4,fe80::/10,fe80::1/64,ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff}'),
  ('cidr', '{0.0.0.0/0,10.0.0.0/8,10.0.0.0/16,10.1.0.0/16,192.168.0.0/24,::/0,2001:db8::/32}'),
  ('text COLLATE "C"', '{"",a,A,aa,ab,b,"a ","a  "," ",ä,é,z,zz,"a\u0001",😀,\uffff,0,10,9,_,"longer than a short header allows: 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789"}'),
  ('varchar(10) COLLATE "C"', '{"",a,A,aa,ab,b,"a ",ä,zz}'),
  ('char(5) COLLATE "C"', '{"",a,A,aa,ab,b," a","a b",ä,zzzzz}'),
  ('bpchar COLLATE "C"', '{"",a,"aa  ",ab,"b   "," a",ä}'),
  ('name', '{"",a,A,aa,ab,b,ä,zz,012345678901234567890123456789012345678901234567890123456789012}'),
  ('text COLLATE "ucs_basic"', '{"",a,A,aa,b,ä,😀,\uffff}'),
  ('text COLLATE "en-x-icu"', '{"",a,A,aa,AA,ab,b,B,ä,a-b,"a b",ab-,z,Z}'),
  ('text', '{"",a,A,aa,AA,ab,b,B,ä,a-b,"a b",ab-,z,Z}'),
  ('char(3) COLLATE "en-x-icu"', '{"",a,A,aa,AA,b,B}'),
  ('mood', '{sad,gloomy,ok,happy}'),
  ('integer[]', '{"{}","{1}","{1,2}","{1,NULL}","{2}","{NULL}","{-1}","[2:3]={1,2}","{{1,2}}","{{1},{2}}","{1,2,3}"}'),
  ('text[] COLLATE "C"', '{"{}","{a}","{a,b}","{ab}","{\"\"}","{\"\",a}","{NULL}","{a,NULL}"}'),
  ('numeric[]', '{"{1.5}","{-1.5}","{0,0}","{0}","{NaN}"}'),
  ('mood[]', '{"{sad}","{happy}","{sad,ok}","{}"}');
UPDATE key_values SET vals = (SELECT array_agg(btrim(v, E'\n ') ORDER BY n) FROM unnest(vals) WITH ORDINALITY u(v, n))
  WHERE type NOT LIKE '%char%' AND type NOT LIKE '%text%' AND type <> 'name';

-- One column, and the same type before and behind another column.
CREATE FUNCTION make_tables(am text, prefix text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  FOR r IN SELECT * FROM key_values ORDER BY id LOOP
    EXECUTE format('CREATE TABLE %I (k %s, v integer, PRIMARY KEY (k)) USING %I', prefix || r.id, r.type, am);
    EXECUTE format('CREATE TABLE %I (v integer, w text, k %s, j integer, PRIMARY KEY (k, j)) USING %I', prefix || r.id || '_first', r.type, am);
    EXECUTE format('CREATE TABLE %I (w text, j integer, k %s, v integer, PRIMARY KEY (j, k)) USING %I', prefix || r.id || '_last', r.type, am);
    EXECUTE format($f$INSERT INTO %I SELECT u.v::%s, n FROM unnest($1) WITH ORDINALITY u(v, n) ORDER BY md5(n::text)$f$,
                   prefix || r.id, split_part(r.type, ' COLLATE', 1)) USING r.vals;
    EXECUTE format($f$INSERT INTO %I SELECT n, 'w' || n, u.v::%s, j FROM unnest($1) WITH ORDINALITY u(v, n), generate_series(-1, 1) j
                      ORDER BY md5(n::text || j)$f$, prefix || r.id || '_first', split_part(r.type, ' COLLATE', 1)) USING r.vals;
    EXECUTE format($f$INSERT INTO %I SELECT NULLIF('w' || n, 'w3'), j, u.v::%s, n FROM unnest($1) WITH ORDINALITY u(v, n), generate_series(-1, 1) j
                      ORDER BY md5(j::text || n)$f$, prefix || r.id || '_last', split_part(r.type, ' COLLATE', 1)) USING r.vals;
  END LOOP;
END $$;

-- MARK: what follows needs the access method.
SELECT make_tables('heap', 'h');
SELECT make_tables('loosekv', 'l');

-- Compares the answers of a query about each table; gives those that differ.
CREATE FUNCTION compare(query text, suffix text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  r record;
  a text;
  b text;
BEGIN
  FOR r IN SELECT * FROM key_values ORDER BY id LOOP
    EXECUTE format('SELECT string_agg(t::text, '';'') FROM (%s) t', format(query, format('%I', 'h' || r.id || suffix), r.type)) INTO a;
    EXECUTE format('SELECT string_agg(t::text, '';'') FROM (%s) t', format(query, format('%I', 'l' || r.id || suffix), r.type)) INTO b;
    IF a IS DISTINCT FROM b THEN
      RETURN NEXT format('%s: heap %s, loosekv %s', r.type, a, b);
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION compare_all() RETURNS SETOF text LANGUAGE sql AS $$
  SELECT compare('SELECT * FROM %s ORDER BY k', '')
  UNION ALL SELECT compare('SELECT * FROM %s ORDER BY k DESC', '')
  UNION ALL SELECT compare('SELECT * FROM %s ORDER BY k LIMIT 3', '')
  UNION ALL SELECT compare('SELECT * FROM %s ORDER BY k, j', '_first')
  UNION ALL SELECT compare('SELECT * FROM %s ORDER BY k DESC, j DESC', '_first')
  UNION ALL SELECT compare('SELECT * FROM %s ORDER BY j, k', '_last')
  UNION ALL SELECT compare('SELECT * FROM %s WHERE j = 0 ORDER BY k', '_last')
  UNION ALL SELECT compare('SELECT * FROM %s WHERE j > -1 ORDER BY j, k', '_last')
  UNION ALL SELECT compare('SELECT * FROM %s WHERE j = ANY (''{1,-1,1,NULL}'') ORDER BY j, k', '_last')
  UNION ALL SELECT compare('SELECT a.v, b.v FROM %1$s a JOIN %1$s b ON a.k = b.k ORDER BY a.v', '')
  UNION ALL SELECT compare('SELECT a.v, (SELECT count(*) FROM %1$s b WHERE b.k < a.k) AS below, (SELECT count(*) FROM %1$s b WHERE b.k >= a.k) AS rest FROM %1$s a ORDER BY a.v', '')
  UNION ALL SELECT compare('SELECT a.v, a.j, (SELECT count(*) FROM %1$s b WHERE b.k <= a.k) AS upto, (SELECT count(*) FROM %1$s b WHERE b.k = a.k AND b.j > a.j) AS rest FROM %1$s a ORDER BY a.v, a.j', '_first')
  UNION ALL SELECT compare('SELECT a.v, a.j, (SELECT count(*) FROM %1$s b WHERE (b.k, b.j) > (a.k, a.j)) AS rest FROM %1$s a ORDER BY a.v, a.j', '_first')
$$;

SELECT compare_all();
SET enable_seqscan = off;
SET enable_sort = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_bitmapscan = off;
SELECT compare_all();
RESET enable_seqscan;
RESET enable_sort;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_bitmapscan;

-- Equal values that are written differently are the same key, and keep how they were written.
CREATE TABLE same_numeric (k numeric PRIMARY KEY) USING loosekv;
INSERT INTO same_numeric VALUES (1.00), (100), (-0.0);
INSERT INTO same_numeric VALUES (1.0);
INSERT INTO same_numeric VALUES (1e2);
INSERT INTO same_numeric VALUES (0);
SELECT * FROM same_numeric WHERE k = 1.000;
SELECT * FROM same_numeric ORDER BY k;
CREATE TABLE same_float (k double precision PRIMARY KEY) USING loosekv;
INSERT INTO same_float VALUES ('-0'), ('NaN');
INSERT INTO same_float VALUES (0);
INSERT INTO same_float VALUES ('NaN');
SELECT * FROM same_float WHERE k = 0;
CREATE TABLE same_interval (k interval PRIMARY KEY) USING loosekv;
INSERT INTO same_interval VALUES ('1 month'), ('25 hours');
INSERT INTO same_interval VALUES ('30 days');
INSERT INTO same_interval VALUES ('1 day 1 hour');
SELECT * FROM same_interval WHERE k = '720 hours';
CREATE TABLE same_char (k char(4) PRIMARY KEY) USING loosekv;
INSERT INTO same_char VALUES ('a');
INSERT INTO same_char VALUES ('a  ');
SELECT k, octet_length(k) FROM same_char WHERE k = 'a';

-- Constants of another type.
CREATE TABLE cross_small (k smallint PRIMARY KEY) USING loosekv;
INSERT INTO cross_small VALUES (-32768), (0), (5), (32767);
CREATE TABLE cross_date (k date PRIMARY KEY) USING loosekv;
INSERT INTO cross_date VALUES ('-infinity'), ('2000-01-01'), ('2000-01-02'), ('5874897-12-31'), ('infinity');
CREATE TABLE cross_real (k real PRIMARY KEY) USING loosekv;
INSERT INTO cross_real VALUES ('-Infinity'), (0.1), (0.5), (3.4028235e38), ('Infinity'), ('NaN');
SET enable_seqscan = off;
SELECT * FROM cross_small WHERE k < 100000 ORDER BY k;
SELECT * FROM cross_small WHERE k > 100000::bigint ORDER BY k;
SELECT * FROM cross_small WHERE k >= -32768::bigint - 1 AND k <= 5::bigint ORDER BY k;
SELECT * FROM cross_small WHERE k = 65541;
SELECT * FROM cross_small WHERE k = ANY ('{5,65536,0,NULL}'::integer[]) ORDER BY k;
SELECT * FROM cross_date WHERE k <= '2000-01-01 00:00:01'::timestamp ORDER BY k;
SELECT * FROM cross_date WHERE k < '2000-01-02'::timestamp ORDER BY k;
SELECT * FROM cross_date WHERE k = '2000-01-01 00:00:01'::timestamp;
SELECT * FROM cross_date WHERE k >= 'infinity'::timestamp ORDER BY k;
SELECT * FROM cross_date WHERE k > '2000-01-01 12:00+00'::timestamptz ORDER BY k;
SELECT * FROM cross_real WHERE k < 0.1::double precision ORDER BY k;
SELECT * FROM cross_real WHERE k > 0.1::double precision ORDER BY k;
SELECT * FROM cross_real WHERE k > 1e300 ORDER BY k;
RESET enable_seqscan;

-- Refused, and said so.
\set VERBOSITY default
CREATE COLLATION nondeterministic (provider = icu, locale = 'und', deterministic = false);
CREATE TABLE refused (k text COLLATE nondeterministic PRIMARY KEY) USING loosekv;
CREATE TABLE refused (k int4range PRIMARY KEY) USING loosekv;
CREATE TABLE refused (k jsonb PRIMARY KEY) USING loosekv;
CREATE TABLE refused (k tsvector PRIMARY KEY) USING loosekv;
CREATE TABLE too_long (k text COLLATE "C" PRIMARY KEY) USING loosekv;
INSERT INTO too_long VALUES (repeat('x', 1900));
INSERT INTO too_long VALUES (repeat('x', 1901));
SELECT length(k) FROM too_long WHERE k = repeat('x', 1901);
SELECT length(k) FROM too_long WHERE k < repeat('x', 3000);
SELECT length(k) FROM too_long WHERE k > repeat('x', 3000);

SET client_min_messages = warning;
DROP SCHEMA key_types CASCADE;
