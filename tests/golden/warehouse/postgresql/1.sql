CREATE TABLE visits (id int PRIMARY KEY, region int NOT NULL, note text);
INSERT INTO visits SELECT i, i % 4, 'visit ' || i FROM generate_series(1, 40) i;
ALTER TABLE visits ENABLE ROW LEVEL SECURITY;
CREATE POLICY regions ON visits FOR SELECT USING (region < 3);
