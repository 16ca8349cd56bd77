"""Rules are looked at here, again and again: readings go in, rows, metrics and notifications come out."""
