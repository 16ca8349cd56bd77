"""Meaning: what requests and replies of the OpenAI API say, read off a copy of the bytes. Sans-io."""
