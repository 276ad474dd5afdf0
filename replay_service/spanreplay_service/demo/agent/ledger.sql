CREATE TABLE quotes (symbol TEXT PRIMARY KEY, price REAL NOT NULL);
CREATE TABLE positions (user_id TEXT NOT NULL, symbol TEXT NOT NULL, quantity REAL NOT NULL, PRIMARY KEY (user_id, symbol));
CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id TEXT, symbol TEXT, side TEXT, quantity REAL, price REAL, value REAL);
INSERT INTO quotes VALUES ('ACME', 158.33);
INSERT INTO positions
WITH RECURSIVE customers (n) AS (SELECT 201 UNION ALL SELECT n + 1 FROM customers WHERE n < 210)
SELECT 'u-' || n, 'ACME', 5000 FROM customers;
