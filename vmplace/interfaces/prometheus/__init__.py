"""Rules and a dashboard for whoever watches vmplace with Prometheus and Grafana."""
