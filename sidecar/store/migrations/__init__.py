"""Alembic revisions, run by `sidecar.store.upgrade` and packaged with it."""
