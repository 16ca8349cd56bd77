"""The sidecar: relay, tap, probes, controller, record and admin API, in one process."""
