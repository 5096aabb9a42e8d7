UPDATE stock SET pieces = pieces + 50 WHERE id % 100 = 35;
DELETE FROM stock WHERE id IN (45, 1100);
INSERT INTO stock VALUES (7, 'S02', 3), (1003, 'S03', 4);
