"""Alert rules, their dispatch and notifiers. Imports no other room."""
