"""Alembic environment: runs the revisions on the connection that `sidecar.store.upgrade` hands in."""

from alembic import context

from sidecar.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
