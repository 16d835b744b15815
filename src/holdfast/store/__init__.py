"""All SQL. Functions take a transaction; none commits."""
