"""Dashboards, rules and manifests for Grafana and Prometheus, made by code and checked in; `specwatch grafana`."""
