"""Hours of real prompts, and whether anything drifts."""
