"""The model server: its launch and the demo models. Installs as `specwatch_engine`."""
