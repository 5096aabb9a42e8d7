-- Long enough for two frames, each row unlike the next one, and small when it is compressed.
UPDATE parcels SET content = (
    WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 40)
    SELECT group_concat(printf('%08x', (parcels.id + 1) * i * 2654435761 % 4294967291), '') FROM n
) || replace(hex(zeroblob(20000)), '00', 'ab')
WHERE id % 2 = 1;
DELETE FROM parcels WHERE id = 100;
