"""MariaDB and MySQL: read unbuffered as the text that the server writes."""
