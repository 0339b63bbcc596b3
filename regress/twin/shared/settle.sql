-- Rows of a table of loosekv come from its memtables to a run, and with `whole` all runs become one; other tables are left as they are.
CREATE FUNCTION settle(tables text DEFAULT 't', whole boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = tables::regclass) = 'loosekv' THEN
        PERFORM loosekv.flush(tables::regclass);
        IF whole THEN
            PERFORM loosekv.compact(tables::regclass);
        END IF;
    END IF;
END $$;
