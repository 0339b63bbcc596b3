-- Key quals as key ranges: the same quals on heap (which decides each by its operator) and on loosekv (which turns them into
-- ranges of encoded keys) must give the same rows, forwards and backwards.

CREATE SCHEMA bounds_heap;
CREATE SCHEMA bounds_loosekv;
SET timezone = 'UTC';
CREATE TYPE public.key_mood AS ENUM ('sad', 'ok', 'happy');
ALTER TYPE public.key_mood ADD VALUE 'gloomy' BEFORE 'ok';

CREATE TABLE public.bounds_setup (n serial, statement text);
INSERT INTO public.bounds_setup (statement) SELECT unnest(ARRAY[
  $q$create table s2 (a int2, b int8, c text collate "C", d date, v int, primary key (a,b,c,d))$q$,
  $q$insert into s2 select a, b, c, date '2000-01-01' + d, 1 from unnest('{-32768,-1,0,1,5,32767}'::int2[]) a, unnest('{-9223372036854775808,-1,0,1,9223372036854775807}'::int8[]) b, unnest('{"",a,ab,b}'::text[]) c, unnest('{-1,0,1}'::int[]) d$q$,
  $q$create table s1 (k date primary key, v int)$q$,
  $q$insert into s1 values ('-infinity'), ('1999-12-31'), ('2000-01-01'),('2000-01-02'),('5874897-12-31'),('infinity')$q$,
  $q$create table st (k timestamptz primary key, v int)$q$,
  $q$insert into st values ('-infinity'), ('1999-12-31'), ('2000-01-01'),('2000-01-02'),('2000-01-01 12:00'),('294276-12-30'),('infinity')$q$,
  $q$create table sts (k timestamp primary key, v int)$q$,
  $q$insert into sts values ('-infinity'), ('1999-12-31'), ('2000-01-01'),('2000-01-02'),('2000-01-01 12:00'),('294276-12-30'),('294276-12-31 23:59:59.999999'),('infinity')$q$,
  $q$create table sr (k float4 primary key, v int)$q$,
  $q$insert into sr values ('-infinity'),(-0.1),(0),(0.1),(0.5),(3.4028235e38),('infinity'),('nan')$q$,
  $q$create table sn (k name primary key, v int)$q$,
  $q$insert into sn values (''),('a'),('ab'),(repeat('x',63)),(repeat('x',62)),('z')$q$,
  $q$create table sb (k bytea primary key, v int)$q$,
  $q$insert into sb values (''),('\x00'),('\xff'),('\xffff'),('\xffff00'),('\x01')$q$,
  $q$create table sbb (k bytea, j int, v int, primary key(k,j))$q$,
  $q$insert into sbb select k, j from sb, generate_series(-1,1) j$q$,
  $q$insert into sbb select '\xffff', j from unnest('{2147483647,-2147483648}'::int[]) j$q$,
  $q$create table su (k int4, j uuid, v int, primary key(k,j))$q$,
  $q$insert into su select k, j::uuid from unnest('{-2147483648,0,2147483647}'::int[]) k, unnest('{00000000-0000-0000-0000-000000000000,ffffffff-ffff-ffff-ffff-ffffffffffff,01020304-0506-0708-090a-0b0c0d0e0f10}'::text[]) j$q$,
  $q$create table si (k text collate "en-x-icu", j int, v int, primary key(k,j))$q$,
  $q$insert into si select k, j from unnest('{a,A,b,B,""}'::text[]) k, generate_series(1,3) j$q$,
  $q$create table se (k key_mood primary key, v int)$q$,
  $q$insert into se values ('sad'),('ok'),('gloomy')$q$]);

CREATE FUNCTION public.bounds_make(am text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  s text;
BEGIN
  PERFORM set_config('search_path', 'bounds_' || am || ',public', true);
  PERFORM set_config('default_table_access_method', am, true);
  FOR s IN SELECT statement FROM public.bounds_setup ORDER BY n LOOP
    EXECUTE s;
  END LOOP;
END $$;
SELECT public.bounds_make('heap');
SELECT public.bounds_make('loosekv');

CREATE TABLE public.bounds (t text, qual text);
INSERT INTO public.bounds VALUES
  ('s2','a = 1'),('s2','a = 1 and b > 0'),('s2','a = 1 and b >= 0 and b < 5'),('s2','a > 1'),('s2','a >= 1::int8'),('s2','a < 100000'),('s2','a > 100000'),('s2','a > -100000'),('s2','a = 65536'),
  ('s2','a = 1 and b = 1 and c = ''a'' and d = ''2000-01-01'''),('s2','a = 1 and b = 1 and c = ''a'' and d <= ''2000-01-01 00:00:01''::timestamp'),
  ('s2','a = any(''{1,5,-1,1,null}'') and b = 1'),('s2','a = any(''{1,5,-1}''::int4[]) and b = any(''{0,-1,7}'')'),('s2','a = any(''{1,5,70000}''::int4[]) and b > 0'),('s2','a = any(''{}''::int4[])'),
  ('s2','(a,b) > (1,0)'),('s2','(a,b) >= (1,0)'),('s2','(a,b) < (1,0)'),('s2','(a,b) <= (1,0)'),('s2','(a,b,c) > (1,0,''a'')'),('s2','(a,b,c,d) > (1,0,''a'',''2000-01-01'')'),('s2','(a,b,c,d) <= (1,0,''a'',''2000-01-01'')'),
  ('s2','a = 1 and (b,c) > (0,''a'')'),('s2','(a,c) > (1,''a'')'),('s2','(a,b) > (1,0) and (a,b) < (5,1)'),('s2','(a,b) > (1,0) and a <= 5'),('s2','a > 0 and a > 1 and a < 32767 and a <= 32767'),
  ('s2','a = 1 and a = 2'),('s2','a = 1 and a > 0'),('s2','a = 1 and a > 1'),('s2','b = 1'),('s2','a = 1 and c = ''a'''),('s2','a = 1 and b = 0 and c > ''a'''),('s2','a = 1 and b = 0 and c >= ''a'' and c < ''b'''),('s2','a = 1 and b = 0 and c = ''a''::name'),('s2','a = 1 and b = 0 and c > ''a''::name'),
  ('s2','a is not null and b = 1'),('s2','a is null'),('s2','a = null::int2'),('s2','a < any(''{1,5}''::int2[])'),('s2','a >= any(''{1,5}''::int4[])'),('s2','a > any(''{-70000}''::int4[])'),('s2','a < any(''{-70000,null}''::int4[])'),('s2','(a,b) > (1,null)'),('s2','(a,b) > (100000,0)'),('s2','(a,b,c) <= (1::int8,0,''a''::name)'),
  ('s2','a = 32767 and b = 9223372036854775807 and c > ''b'''),('s2','a > 32767'),('s2','a <= 32767'),('s2','a = 5 and b = 0 and c = any(''{a,b,zzz}'') and d > ''1999-12-31'''),
  ('s1','k < ''2000-01-01 00:00:01''::timestamp'),('s1','k <= ''2000-01-01''::timestamp'),('s1','k > ''1999-12-31 23:00''::timestamp'),('s1','k = ''2000-01-01 00:00:01''::timestamp'),('s1','k = ''2000-01-01''::timestamp'),('s1','k >= ''infinity''::timestamp'),('s1','k > ''-infinity''::timestamp'),('s1','k < ''infinity''::timestamp'),('s1','k > ''2000-01-01''::timestamptz'),('s1','k = any(''{2000-01-01,2000-01-02}'')'),
  ('st','k >= ''2000-01-01''::date'),('st','k > ''2000-01-01''::date and k < ''2000-01-02 06:00''::timestamp'),('st','k = ''infinity''::date'),('st','k < ''294276-12-31''::date'),('st','k < ''5874897-12-31''::date'),('st','k > ''4713-01-01 BC''::date'),
  ('sts','k >= ''2000-01-01''::date'),('sts','k = ''2000-01-01''::date'),('sts','k < ''5874897-12-31''::date'),('sts','k > ''5874897-12-31''::date'),('sts','k <= ''294277-01-01''::date'),('sts','k >= ''infinity''::date'),('sts','k > ''2000-01-01''::timestamptz'),('sts','k = ''-infinity''::date'),
  ('sr','k < 0.1::float8'),('sr','k <= 0.1::float8'),('sr','k > 0.1::float8'),('sr','k = 0.1::float8'),('sr','k = 0.5::float8'),('sr','k > 1e300'),('sr','k < -1e300'),('sr','k >= ''nan''::float8'),('sr','k = ''nan''::float8'),('sr','k = -0.0::float8'),('sr','k > 1e-60'),('sr','k < -1e-60'),('sr','k < ''infinity''::float8'),
  ('sn','k = repeat(''x'',64)'),('sn','k < repeat(''x'',64)'),('sn','k > repeat(''x'',64)'),('sn','k >= repeat(''x'',64)'),('sn','k = ''a''::text'),('sn','k <= repeat(''x'',63)'),
  ('sb','k > ''\xff'''),('sb','k >= ''\xffff'''),('sb','k > ''\xffff'''),('sb','k < ''\x00'''),('sb','k <= '''''),('sb','k > '''''),('sb','k > ''\x'' || decode(repeat(''ff'',3000),''hex'')'),('sb','k < decode(repeat(''ff'',3000),''hex'')'),('sb','k = decode(repeat(''ff'',3000),''hex'')'),('sb','k < decode(repeat(''01'',3000),''hex'')'),
  ('sbb','k = ''\xffff'' and j > 0'),('sbb','k = ''\xffff'' and j > 2147483647'),('sbb','k > ''\xffff'''),('sbb','k = '''' and j <= 0'),('sbb','(k,j) > (''\xffff'',0)'),('sbb','(k,j) > (''\xffff'',2147483647)'),('sbb','k <= ''\x00'''),
  ('su','k = 2147483647 and j > ''ffffffff-ffff-ffff-ffff-ffffffffffff'''),('su','k = 2147483647 and j >= ''ffffffff-ffff-ffff-ffff-ffffffffffff'''),('su','k > 2147483647'),('su','k >= 2147483647'),('su','k = 0 and j < ''01020304-0506-0708-090a-0b0c0d0e0f10'''),('su','k > 9999999999'),('su','k < 9999999999'),
  ('si','k = ''a'''),('si','k > ''a'''),('si','k = ''a'' and j > 1'),('si','k = any(''{A,b}'') and j = 2'),('si','(k,j) > (''a'',1)'),('si','k = ''A'' and j >= 2'),
  ('se','k = ''ok'''),('se','k > ''ok'''),('se','k = any(''{ok,sad}'')');

CREATE FUNCTION public.bounds_differ(direction text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  q record;
  a text;
  b text;
  key text;
BEGIN
  FOR q IN SELECT * FROM public.bounds LOOP
    SELECT string_agg(quote_ident(attname) || ' ' || direction, ', ' ORDER BY attnum) INTO key
      FROM pg_attribute WHERE attrelid = format('bounds_heap.%I_pkey', q.t)::regclass;
    EXECUTE format('SELECT string_agg(r::text, '';'') FROM (SELECT * FROM bounds_heap.%I WHERE %s ORDER BY %s) r', q.t, q.qual, key) INTO a;
    EXECUTE format('SELECT string_agg(r::text, '';'') FROM (SELECT * FROM bounds_loosekv.%I WHERE %s ORDER BY %s) r', q.t, q.qual, key) INTO b;
    IF a IS DISTINCT FROM b THEN
      RETURN NEXT format('%s WHERE %s: heap %s, loosekv %s', q.t, q.qual, a, b);
    END IF;
  END LOOP;
END $$;

ANALYZE;
SELECT count(*) > 100 AS enough FROM public.bounds;
SELECT public.bounds_differ('ASC');
SELECT public.bounds_differ('DESC');
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SELECT public.bounds_differ('ASC');
SELECT public.bounds_differ('DESC');
RESET enable_seqscan;
RESET enable_bitmapscan;
RESET enable_sort;

SET client_min_messages = warning;
DROP SCHEMA bounds_heap CASCADE;
DROP SCHEMA bounds_loosekv CASCADE;
DROP TABLE public.bounds, public.bounds_setup;
DROP FUNCTION public.bounds_make, public.bounds_differ;
DROP TYPE public.key_mood;
