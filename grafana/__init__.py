"""Dashboards, rules and manifests for Grafana and Prometheus, made by code and checked in; `specwatch grafana`.

What makes the files, `python -m specwatch_grafana.generate`:
  boards/ (one module each), by board, panels, promql, words: dashboards/*.json
  recording, burn, rules: rules.yml
  alerting: the same alerts as Grafana's own rules, provisioning/
  manifests: kubernetes/, prometheus-compose.yml
Written by hand: prometheus.yml, alertmanager.yml, compose.yaml, Dockerfile, provisioning of data source and folder.

What brings them into a Grafana, `specwatch grafana push|export`: shipped reads the files; push, push_rules, compare and
connection talk to its HTTP API; export writes them elsewhere.
"""
