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
