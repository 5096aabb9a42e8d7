CREATE TABLE orders (
    id INTEGER PRIMARY KEY, code VARCHAR(20) NOT NULL, status INT, price DOUBLE,
    amount DECIMAL(9,2), placed TIMESTAMP, paid BOOLEAN, seal BLOB, note TEXT
);
INSERT INTO orders
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 199)
SELECT i * 3, printf('A%05d', i), i % 7, i / 7.0, i + 0.25 * (i % 4),
       printf('2024-01-%02d %02d:30:00', 1 + i % 28, i % 24), i % 2,
       CASE i % 3 WHEN 0 THEN NULL ELSE CAST(printf('seal %d', i) AS BLOB) END,
       CASE i % 5 WHEN 0 THEN NULL ELSE printf('Größe %d', i * i) END
FROM n;

CREATE TABLE customers (
    code VARCHAR(12) NOT NULL, region INT NOT NULL, name TEXT, PRIMARY KEY (code, region)
) WITHOUT ROWID;
INSERT INTO customers
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 149)
SELECT printf('%s%03d', substr('KÄZ', 1 + i % 3, 1), i), i % 4, printf('name %d', i * 31) FROM n;

CREATE TABLE stock (id INTEGER PRIMARY KEY, shelf VARCHAR(8), pieces INT);
INSERT INTO stock
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 239)
SELECT i * 5, printf('S%02d', i % 17), i * 7 % 100 FROM n;

CREATE TABLE parcels (id INTEGER PRIMARY KEY, label VARCHAR(20) NOT NULL, content TEXT);
INSERT INTO parcels
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 159)
SELECT i, printf('parcel %d', i), NULL FROM n;

CREATE TABLE ledger (id INTEGER PRIMARY KEY, amount DECIMAL(9,2), changed TIMESTAMP NOT NULL);
CREATE INDEX ledger_changed ON ledger (changed);
INSERT INTO ledger
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 119)
SELECT i, i * 1.25, printf('2024-02-%02d %02d:00:00', 1 + i % 28, i % 24) FROM n;

CREATE TABLE prices (id INTEGER PRIMARY KEY, price INT);
INSERT INTO prices
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 1499)
SELECT i, i % 10 FROM n;

CREATE TABLE labels (id INTEGER PRIMARY KEY, text TEXT);
INSERT INTO labels
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 59)
SELECT i, printf('label %d', i) FROM n;

CREATE TABLE kinds (id INTEGER PRIMARY KEY, name TEXT);
INSERT INTO kinds VALUES (1, 'small'), (2, 'large'), (3, NULL);

CREATE TABLE sites (id INTEGER PRIMARY KEY, name TEXT, phone TEXT);
INSERT INTO sites
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 19)
SELECT i, printf('site %d', i), printf('0%d', i) FROM n;
CREATE TABLE loads (id INTEGER PRIMARY KEY, site INT, truck INT, tons INT);
INSERT INTO loads
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 99)
SELECT i, i % 20, i % 12, i % 9 FROM n;
CREATE TABLE trucks (id INTEGER PRIMARY KEY, kind TEXT, plate TEXT, memo TEXT);
INSERT INTO trucks
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 11)
SELECT i, substr('KLM', 1 + i % 3, 1), printf('ZH %d', i), 'not asked for' FROM n;
CREATE TABLE bays (id INTEGER PRIMARY KEY, gate INT, is_open INT);
INSERT INTO bays
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 39)
SELECT i, i % 5, i % 2 FROM n;
CREATE TABLE docks (id INTEGER PRIMARY KEY, width INT);
INSERT INTO docks VALUES (1, 5), (2, 10), (3, 20);
