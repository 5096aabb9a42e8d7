ALTER POLICY regions ON visits USING (region <= 2);
