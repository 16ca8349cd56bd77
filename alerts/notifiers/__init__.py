"""How alerts reach people and systems: one receiver type a file."""
