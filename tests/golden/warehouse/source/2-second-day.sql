UPDATE orders SET status = 8, note = 'second day' WHERE id % 60 = 3;
DELETE FROM orders WHERE id IN (30, 150);
INSERT INTO orders VALUES
    (1, 'B00001', 1, 0.1, 19.99, '2024-03-02 05:00:00', 0, x'00ff', 'between two others'),
    (9001, 'B00002', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
UPDATE customers SET name = 'second day' WHERE region = 3 AND code LIKE 'K%1';
DELETE FROM customers WHERE code = 'Z002';
INSERT INTO customers VALUES ('K000', 9, 'the same code elsewhere');
UPDATE stock SET pieces = pieces - 1 WHERE id % 100 = 15;
DELETE FROM stock WHERE id IN (20, 600);
INSERT INTO stock VALUES (-5, 'S00', 1), (9000, 'S01', 2);
UPDATE ledger SET amount = amount + 1, changed = '2024-03-02 05:00:00' WHERE id % 40 = 7;
UPDATE prices SET price = price + 1 WHERE id % 500 = 3;
UPDATE labels SET text = 'second day' WHERE id = 7;
ALTER TABLE kinds ADD COLUMN weight INT;
UPDATE kinds SET weight = id * 10;
UPDATE loads SET tons = 10 WHERE id IN (3, 15);
UPDATE bays SET is_open = 1 WHERE id = 4;
UPDATE docks SET width = 25 WHERE id = 3;
