UPDATE orders SET status = 9, price = price + 0.5 WHERE id % 60 = 3;
UPDATE orders SET note = 'third day' WHERE id = 300;
INSERT INTO orders SELECT 9004, 'C00001', status, price, amount, placed, paid, seal, note
FROM orders WHERE id = 6;
UPDATE sites SET phone = 'no view reads it' WHERE id = 3;
UPDATE bays SET gate = 4 WHERE id = 6;
UPDATE docks SET width = 0 WHERE id = 2;
