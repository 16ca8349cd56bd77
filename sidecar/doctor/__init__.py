"""`specwatch doctor`: checks that look, and say what to do."""
