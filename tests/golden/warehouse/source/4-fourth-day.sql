UPDATE orders SET status = 10 WHERE id % 120 = 3;
DELETE FROM orders WHERE id BETWEEN 400 AND 420;
UPDATE customers SET name = NULL WHERE code LIKE 'Ä%' AND region = 1;
INSERT INTO customers VALUES ('Ä999', 0, 'fourth day');
UPDATE bays SET is_open = 0 WHERE id = 9;
INSERT INTO bays VALUES (100, 1, 1);
