"""The database: schema, migrations, the one writer, and all reading SQL. The only room with SQLAlchemy."""
