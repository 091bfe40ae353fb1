"""What people and dashboards look at."""
