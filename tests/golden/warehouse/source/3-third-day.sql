UPDATE orders SET status = 9, price = price + 0.5 WHERE id % 60 = 3;
UPDATE orders SET note = 'third day' WHERE id = 300;
INSERT INTO orders SELECT 9004, 'C00001', status, price, amount, placed, paid, seal, note
FROM orders WHERE id = 6;
