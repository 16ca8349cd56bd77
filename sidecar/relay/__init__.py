"""Bytes: HTTP/1.1 between clients and upstreams, on asyncio protocols. Knows no JSON, SQL or rule."""
